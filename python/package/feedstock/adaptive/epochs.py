"""Epochs that a restart does not repeat or skip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class HasEpochs(Protocol):
    """A loader with a current epoch."""

    @property
    def epoch(self) -> int: ...
    def set_epoch(self, epoch: int) -> None: ...


def remaining_epochs_until(loader: HasEpochs, epochs: int) -> Iterator[int]:
    """Yields the remaining epochs of a loader: `for epoch in remaining_epochs_until(loader, 90)`.

    The first one is the loader's current epoch. After `load_state_dict` it is the unfinished one, whose rest is
    delivered. An epoch that is left by `break` is not continued. The method of this name of `AdaptiveLoader` also
    repeats unfinished work after the last batch of an epoch, for example an evaluation.
    """
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        yield epoch
