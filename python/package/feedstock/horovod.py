"""feedstock under Elastic Horovod: the loader as part of `TorchState`.

```text
 state.commit()            ──▶ save()      the cursor, in memory, beside the model's and the optimizer's copies
 HorovodInternalError      ──▶ restore()   back to it, as the model is
 workers added or removed  ──▶ on_reset()  the new rank and size
 before training goes on   ──▶ sync()      the cursor of rank 0, on every worker
```
So the samples of steps that were undone come again, those of steps that count do not, and new workers join at
the same position.

Workers do not compare what they are about to load unless torch.distributed is initialized too: Horovod has no
store with counters.

Horovod's last release, 0.28.1 (2023), does not build against torch ≥ 2.1, whose headers want C++17. This
module needs nothing of it but the names in `_load` and `register`, is written to the interface of
`horovod.torch.elastic` in 0.20 to 0.28, and is tested against a stand-in for that, never against Horovod
itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from feedstock import Loader
from feedstock.adaptive import AdaptiveLoader

__all__ = ["HorovodExchange", "LoaderStateHandler", "attach", "register"]

T = TypeVar("T")


class Horovod(Protocol):
    """What this module uses of `horovod.torch`."""

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def broadcast_object(self, value: T, root_rank: int = 0) -> T: ...
    def allgather_object(self, value: T) -> list[T]: ...


class LoaderStateHandler:
    """What `TorchState` calls for an attribute that is a `Loader` or an `AdaptiveLoader`.

    Its methods are those of Horovod's `StateHandler`. `register` makes `TorchState` use it.
    hvd: `horovod.torch`, by default.
    """

    def __init__(self, loader: Loader | AdaptiveLoader, hvd: Horovod | None = None) -> None:
        self.value = loader
        self._hvd = hvd if hvd is not None else _load()
        self._remember()

    def save(self) -> None:
        """Collective, if the loader has accumulators: remembers where to go on. What was delivered up to here
        is in the model."""
        if isinstance(self.value, AdaptiveLoader):
            self.value.sync()
        self._remember()

    def restore(self) -> None:
        """Back to what was saved last. Rank and size follow with `on_reset`."""
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        """Collective: every worker stands where rank 0 does, with its own share."""
        self.on_reset()
        self.value.load_state_dict(self._hvd.broadcast_object(self.value.state_dict(), root_rank=0))
        self._remember()

    def set_value(self, value: Loader | AdaptiveLoader) -> None:
        """The attribute was assigned another loader."""
        self.value = value
        self._remember()

    def on_reset(self) -> None:
        """The workers changed: this worker's new share, from the same position.

        A batch size for each rank stays as it is, a global one too; an `AdaptiveLoader`'s steps keep their
        rows over all workers. Horovod skips `sync` where workers were only removed, so that this alone has to
        do; `attach` registers it.
        """
        rank, size = self._hvd.rank(), self._hvd.size()
        if (rank, size) != (self.value.rank, self.value.world_size):
            self.value.reconfigure(rank=rank, world_size=size)

    def _remember(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())


class HorovodExchange:
    """How `AdaptiveLoader` and `Accumulator` speak under Horovod: `AdaptiveLoader(loader,
    exchange=HorovodExchange())`.

    Rank and size are Horovod's own at every call, so it need not be replaced when workers come and go.
    """

    def __init__(self, hvd: Horovod | None = None) -> None:
        self._hvd = hvd if hvd is not None else _load()

    @property
    def rank(self) -> int:
        """This worker's rank; 0 decides."""
        return self._hvd.rank()

    @property
    def size(self) -> int:
        """Workers at present."""
        return self._hvd.size()

    def all_gather(self, value: T) -> list[T]:
        """Every worker's value, in the order of their ranks."""
        return self._hvd.allgather_object(value)

    def broadcast(self, value: T) -> T:
        """The value of rank 0."""
        return self._hvd.broadcast_object(value, root_rank=0)


def register() -> None:
    """Makes `TorchState(loader=…)` keep loaders by `LoaderStateHandler`. Before the state is made; twice is
    once.

    Unregistered, `TorchState` would take a loader for a plain object and try to pickle it.
    """
    try:
        from horovod.torch.elastic import state as elastic
    except ImportError as error:
        raise _missing(error) from error
    registry: Sequence[tuple[type, type]] = elastic.get_handler_registry()
    kept = [entry for entry in registry if entry[1] is not LoaderStateHandler]
    elastic.set_handler_registry([(Loader, LoaderStateHandler), (AdaptiveLoader, LoaderStateHandler), *kept])


def attach(state: Any) -> None:
    """After `TorchState` was made: its loaders take their new share whenever workers come or go."""
    handlers = [one for one in state._handlers.values() if isinstance(one, LoaderStateHandler)]
    state.register_reset_callbacks([handler.on_reset for handler in handlers])


def _load() -> Horovod:
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise _missing(error) from error
    return hvd  # type: ignore[no-any-return]


def _missing(error: ImportError) -> ImportError:
    return ImportError(
        "feedstock.horovod needs horovod built with PyTorch. Its last release, 0.28.1, builds up to torch 2.0; with a "
        f"newer torch, torchrun's elastic launch and feedstock.adaptive do the same ({error})"
    )
