"""Epochs that a restart neither repeats nor skips."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class HasEpochs(Protocol):
    """A loader that knows where it stands."""

    @property
    def epoch(self) -> int: ...
    def set_epoch(self, epoch: int) -> None: ...


def remaining_epochs_until(loader: HasEpochs, epochs: int) -> Iterator[int]:
    """The epochs that are left for a loader until `epochs` are done: `for epoch in
    remaining_epochs_until(loader, 90)`.

    The first is the loader's own, wherever in it the loader stands; so after `load_state_dict` it is the
    unfinished one, whose rest is delivered. An epoch left by `break` is not taken up again. `AdaptiveLoader`
    has a method of this name that also brings back what comes after the last batch of an epoch (evaluation,
    for instance).
    """
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        yield epoch
