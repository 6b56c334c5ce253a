"""Communication between the processes of a job, so that all take the same decision at the same step.

It needs two collectives of small Python objects. Every process of the job calls them in the same order.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from feedstock import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


class Exchange(Protocol):
    """The communication that adaptive training needs."""

    @property
    def rank(self) -> int:
        """This process's rank; rank 0 decides."""

    @property
    def size(self) -> int:
        """The number of processes."""

    def all_gather(self, value: T) -> list[T]:
        """Returns the values of all processes, in the order of their ranks. Collective."""

    def broadcast(self, value: T) -> T:
        """Returns the value of rank 0. Collective."""


class Alone:
    """A single process, without communication."""

    rank = 0
    size = 1

    def all_gather(self, value: T) -> list[T]:
        return [value]

    def broadcast(self, value: T) -> T:
        return value


class TorchExchange:
    """Communicates through torch.distributed, with any backend.

    Args:
        group: The processes that must agree: all that run a step together. Default: the default group, the whole job.
            NCCL uses the current CUDA device, which must be set before.

    Raises:
        ConfigError: torch.distributed is not initialized.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigError(
                "torch.distributed is not initialized, so the ranks cannot agree; call "
                "torch.distributed.init_process_group first, or give exchange="
            )
        self._dist = dist
        self._group = group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)

    def all_gather(self, value: T) -> list[T]:
        gathered: list[Any] = [None] * self.size
        self._dist.all_gather_object(gathered, value, group=self._group)
        return gathered

    def broadcast(self, value: T) -> T:
        box: list[Any] = [value]
        group = self._group if self._group is not None else self._dist.group.WORLD
        assert group is not None
        self._dist.broadcast_object_list(box, src=self._dist.get_global_rank(group, 0), group=self._group)
        return box[0]  # type: ignore[no-any-return]


def default_exchange(world_size: int) -> Exchange:
    """Returns `TorchExchange` if torch.distributed is initialized, and `Alone` for a single rank.

    Raises:
        ConfigError: There are several ranks, and torch.distributed is not initialized.
    """
    dist = sys.modules.get("torch.distributed")  # not initialized if it was not imported
    initialized = dist is not None and dist.is_available() and dist.is_initialized()
    if initialized:
        return TorchExchange()
    if world_size == 1:
        return Alone()
    raise ConfigError(
        f"torch.distributed is not initialized, so the {world_size} ranks cannot agree; call "
        "torch.distributed.init_process_group first, or give exchange="
    )
