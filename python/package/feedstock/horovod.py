"""Elastic Horovod: the loader as part of `TorchState`.

```text
 state.commit()            ──▶ save()      the cursor, in memory, with the copies of model and optimizer
 HorovodInternalError      ──▶ restore()   back to the saved cursor, like the model
 workers added or removed  ──▶ on_reset()  the new rank and size
 before training continues ──▶ sync()      the cursor of rank 0, on every worker
```
Samples of steps that were undone are delivered again, those of finished steps are not, and new workers join at the same
position.

Workers compare their loaders only if torch.distributed is initialized, too: Horovod has no store with counters.

Horovod's last release, 0.28.1 (2023), does not build with torch ≥ 2.1, whose headers need C++17. This module uses only
the names in `_load` and `register`. It follows the interface of `horovod.torch.elastic` in 0.20 to 0.28, and is tested
with a substitute for that interface, not with Horovod.
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
    """The part of `horovod.torch` that this module uses."""

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def broadcast_object(self, value: T, root_rank: int = 0) -> T: ...
    def allgather_object(self, value: T) -> list[T]: ...


class LoaderStateHandler:
    """Horovod's `StateHandler` for attributes of `TorchState` that are a `Loader` or an `AdaptiveLoader`.

    `register` makes `TorchState` use it.

    Args:
        loader: The loader.
        hvd: The Horovod module; default: `horovod.torch`.
    """

    def __init__(self, loader: Loader | AdaptiveLoader, hvd: Horovod | None = None) -> None:
        self.value = loader
        self._hvd = hvd if hvd is not None else _load()
        self._remember()

    def save(self) -> None:
        """Saves the position: the model contains all batches up to here. Collective if the loader has accumulators."""
        if isinstance(self.value, AdaptiveLoader):
            self.value.sync()
        self._remember()

    def restore(self) -> None:
        """Returns to the saved position. `on_reset` sets rank and size."""
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        """Moves every worker to the position of rank 0, with its own share. Collective."""
        self.on_reset()
        self.value.load_state_dict(self._hvd.broadcast_object(self.value.state_dict(), root_rank=0))
        self._remember()

    def set_value(self, value: Loader | AdaptiveLoader) -> None:
        """Replaces the loader."""
        self.value = value
        self._remember()

    def on_reset(self) -> None:
        """Sets this worker's new share after workers were added or removed. The position stays.

        A batch size for each rank or for all ranks stays; an `AdaptiveLoader`'s steps keep their rows over all workers.
        Horovod skips `sync` if workers were only removed, so this method must suffice. `attach` registers it.
        """
        rank, size = self._hvd.rank(), self._hvd.size()
        if (rank, size) != (self.value.rank, self.value.world_size):
            self.value.reconfigure(rank=rank, world_size=size)

    def _remember(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())


class HorovodExchange:
    """Communication for `AdaptiveLoader` and `Accumulator`: `AdaptiveLoader(loader, exchange=HorovodExchange())`.

    It requests rank and size from Horovod at every call, so it stays valid when workers are added or removed.
    """

    def __init__(self, hvd: Horovod | None = None) -> None:
        self._hvd = hvd if hvd is not None else _load()

    @property
    def rank(self) -> int:
        """This worker's rank; 0 decides."""
        return self._hvd.rank()

    @property
    def size(self) -> int:
        """The current number of workers."""
        return self._hvd.size()

    def all_gather(self, value: T) -> list[T]:
        """Returns the values of all workers, in the order of their ranks. Collective."""
        return self._hvd.allgather_object(value)

    def broadcast(self, value: T) -> T:
        """Returns the value of rank 0. Collective."""
        return self._hvd.broadcast_object(value, root_rank=0)


def register() -> None:
    """Makes `TorchState(loader=…)` use `LoaderStateHandler` for loaders. Call it before the state is made.

    Otherwise `TorchState` would try to pickle the loader as a plain object. Further calls have no effect.
    """
    try:
        from horovod.torch.elastic import state as elastic
    except ImportError as error:
        raise _missing(error) from error
    registry: Sequence[tuple[type, type]] = elastic.get_handler_registry()
    kept = [entry for entry in registry if entry[1] is not LoaderStateHandler]
    elastic.set_handler_registry([(Loader, LoaderStateHandler), (AdaptiveLoader, LoaderStateHandler), *kept])


def attach(state: Any) -> None:
    """Makes the loaders of a `TorchState` update their share whenever workers are added or removed."""
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
