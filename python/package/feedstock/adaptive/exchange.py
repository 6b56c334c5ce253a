"""How the processes of a job tell one another small facts, so that all take the same decision at the same
step.

Two collectives of small Python objects suffice. Every process of the job calls them, in the same order.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from feedstock import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


class Exchange(Protocol):
    """What adaptive training needs of a communication library."""

    @property
    def rank(self) -> int:
        """This process's place among those that exchange; 0 decides."""

    @property
    def size(self) -> int:
        """How many processes exchange."""

    def all_gather(self, value: T) -> list[T]:
        """Every process's value, in the order of their places, in every process."""

    def broadcast(self, value: T) -> T:
        """The value of place 0, in every process."""


class Alone:
    """One process: nobody to tell."""

    rank = 0
    size = 1

    def all_gather(self, value: T) -> list[T]:
        return [value]

    def broadcast(self, value: T) -> T:
        return value


class TorchExchange:
    """torch.distributed, any backend.

    group: the processes that must agree, which are all that run a step together; None is the default group,
    the whole job. Under NCCL the objects travel by the current CUDA device, which must be set before.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigError(
                "torch.distributed is not initialised, so the ranks cannot agree: call "
                "torch.distributed.init_process_group first, or pass exchange="
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
    """torch.distributed where it is initialised; nobody where there is one rank; else an error."""
    dist = sys.modules.get("torch.distributed")  # what was not imported was not initialised
    initialised = dist is not None and dist.is_available() and dist.is_initialized()
    if initialised:
        return TorchExchange()
    if world_size == 1:
        return Alone()
    raise ConfigError(
        f"{world_size} ranks, but torch.distributed is not initialised, so they cannot agree: call "
        "torch.distributed.init_process_group first, or pass exchange="
    )
