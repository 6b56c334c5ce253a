"""PyTorch: this process's data-parallel rank, and the loader of that rank.

    DeviceMesh ── the data-parallel dimensions ──┐
    process group, torch.distributed ────────────┼──▶ Coordinates(rank, world_size) ──▶ Pipeline.loader
    RANK, WORLD_SIZE as torchrun sets them ──────┘

Only data-parallel ranks divide the data. The tensor-, context- and pipeline-parallel peers of a data-parallel rank
compute one forward pass together, so all of them get the same batches. A `DeviceMesh` states which processes are peers.
Without one, every process is a separate data-parallel rank.

The loader needs no further adapter: it is an iterable with `state_dict` and `load_state_dict`, so
`torch.distributed.checkpoint` saves it together with the model, and torchdata treats it as `Stateful`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, overload

import torch.distributed as dist

from feedstock._agreement import TIMEOUT_SECONDS, Agreement
from feedstock._options import LoaderOptions, takes_loader_options
from feedstock.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from typing_extensions import Unpack

    from feedstock import Batch, Loader, Pipeline
    from feedstock._options import OptionsWithoutOutput
    from feedstock._steps import FromOutput

__all__ = ["DATA_DIMS", "MODEL_DIMS", "Coordinates", "coordinates", "loader"]

#: Names of mesh dimensions that divide the data, from PyTorch's documentation, TorchTitan, Accelerate, DeepSpeed and
#: Lightning. All that occur in a mesh count: replicated and sharded data parallelism both divide data.
DATA_DIMS = frozenset(
    ("dp", "ddp", "dp_replicate", "dp_shard", "replicate", "shard", "batch", "data", "data_parallel")
)

#: Names of mesh dimensions whose ranks work on the same samples. Names that differ in meaning between frameworks are in
#: neither list: `ep` may or may not be inside data parallelism, and `fsdp` may include context parallelism.
MODEL_DIMS = frozenset(
    ("tp", "cp", "sp", "pp", "tensor", "context", "sequence", "pipeline", "model")
) | frozenset(
    ("tensor_parallel", "context_parallel", "sequence_parallel", "pipeline_parallel", "model_parallel")
)


class Coordinates(NamedTuple):
    """A data-parallel rank, as `Pipeline.loader` takes it."""

    rank: int
    """0 to world_size - 1. Processes that share it get identical batches."""
    world_size: int
    """The number of data-parallel ranks, at most the number of processes."""


def coordinates(
    mesh: DeviceMesh | None = None,
    *,
    group: ProcessGroup | None = None,
    data_dims: str | Sequence[str] | None = None,
) -> Coordinates:
    """Returns the data-parallel coordinates of this process. Makes no collective call.

    The first that applies:

    1. `mesh`: the position of this process along `data_dims`, in the mesh's order of dimensions.
    2. `group`: rank and size in this process group.
    3. `torch.distributed`, if it is initialized: the default group.
    4. The environment: `RANK` and `WORLD_SIZE`, as `torchrun` sets them.
    5. Rank 0 of 1.

    Args:
        mesh: The device mesh; default: none.
        group: The process group that divides the data; default: none.
        data_dims: Names of the mesh's dimensions that divide the data. Default: all whose names are in `DATA_DIMS`; a
            dimension that is neither there nor in `MODEL_DIMS` is an error. A mesh with a single unnamed dimension is
            data-parallel.

    Raises:
        ConfigError: This process is not in the mesh or the group, or the mesh's data-parallel dimensions are unclear.
    """
    if mesh is not None:
        if group is not None:
            raise ConfigError("mesh and group were both given; give only the one that divides the data")
        return _in_mesh(mesh, data_dims)
    if data_dims is not None:
        raise ConfigError("data_dims names dimensions of a mesh, but no mesh was given; give mesh=")
    if group is not None or (dist.is_available() and dist.is_initialized()):
        rank = dist.get_rank(group)
        if rank < 0:
            raise ConfigError(
                "this process is not in the process group that was given; give a group or mesh that contains it"
            )
        return Coordinates(rank, dist.get_world_size(group))
    return _in_environment()


_T = TypeVar("_T")


@overload
def loader(
    pipeline: Pipeline[FromOutput],
    mesh: DeviceMesh | None = None,
    *,
    group: ProcessGroup | None = None,
    data_dims: str | Sequence[str] | None = None,
    compare_timeout: float = TIMEOUT_SECONDS,
    output: Literal["torch", "numpy"] = "torch",
    **options: Unpack[OptionsWithoutOutput],
) -> Loader[dict[str, Any]]: ...


@overload
def loader(
    pipeline: Pipeline[FromOutput],
    mesh: DeviceMesh | None = None,
    *,
    group: ProcessGroup | None = None,
    data_dims: str | Sequence[str] | None = None,
    compare_timeout: float = TIMEOUT_SECONDS,
    output: Literal["batch"],
    **options: Unpack[OptionsWithoutOutput],
) -> Loader[Batch]: ...


@overload
def loader(
    pipeline: Pipeline[FromOutput],
    mesh: DeviceMesh | None = None,
    *,
    group: ProcessGroup | None = None,
    data_dims: str | Sequence[str] | None = None,
    compare_timeout: float = TIMEOUT_SECONDS,
    **options: Unpack[LoaderOptions],
) -> Loader[Any]: ...


@overload
def loader(
    pipeline: Pipeline[_T],
    mesh: DeviceMesh | None = None,
    *,
    group: ProcessGroup | None = None,
    data_dims: str | Sequence[str] | None = None,
    compare_timeout: float = TIMEOUT_SECONDS,
    **options: Unpack[LoaderOptions],
) -> Loader[_T]: ...


@takes_loader_options(output="torch")
def loader(
    pipeline: Pipeline[Any],
    mesh: DeviceMesh | None = None,
    *,
    group: ProcessGroup | None = None,
    data_dims: str | Sequence[str] | None = None,
    compare_timeout: float = TIMEOUT_SECONDS,
    **options: Unpack[LoaderOptions],
) -> Loader[Any]:
    """Makes the loader of this process's data-parallel rank. The default of `output` is `"torch"`.

    Call it after `init_process_group` or `init_device_mesh`; it makes no collective call. Every process must describe
    the same pipeline. At the first batch, the processes compare their loaders through the process group's store: data
    set and order (the plan's fingerprint), epoch, position, ops, batch size and world size. If two differ, all of them
    raise `ConfigError`, which names the ranks and the differences.

    Args:
        pipeline: The pipeline. Its `batch_size` counts rows for each data-parallel rank.
        mesh: The device mesh; see `coordinates`.
        group: The process group that divides the data; see `coordinates`.
        data_dims: Names of the mesh's dimensions that divide the data; see `coordinates`.
        compare_timeout: Seconds, at least 0, that the first batch waits for the other processes of the mesh or the
            group; default 30. If some of them have not requested a batch of this loader by then, the others log a
            warning and continue. 0: nothing is compared.
        **options: See `LoaderOptions`.

    Raises:
        ConfigError: As for `coordinates` and `Pipeline.loader`; for example if the data set holds less than one global
            batch and the tail is dropped.

    Example:
        >>> import feedstock.torch
        >>> pipeline = fs.Dataset(images).map("image", fs.decode_image(), fs.resize((8, 8))).batch(4)
        >>> loader = feedstock.torch.loader(pipeline)
        >>> batch = next(iter(loader))
        >>> batch["image"].shape, batch["valid"].dtype
        (torch.Size([4, 8, 8, 3]), torch.bool)
    """
    if not compare_timeout >= 0:
        raise ConfigError(f"compare_timeout must be a number of seconds >= 0; got {compare_timeout!r}")
    rank, world_size = coordinates(mesh, group=group, data_dims=data_dims)
    made = pipeline.loader(rank, world_size, **options)
    made._agreement = Agreement(_members(mesh, group), compare_timeout)
    return made


def _members(mesh: DeviceMesh | None, group: ProcessGroup | None) -> list[int] | None:
    """Returns the ranks, in the default group, of the processes that make the loader; None if there is no group."""
    if mesh is not None:
        return [int(rank) for rank in mesh.mesh.flatten().tolist()]
    if group is not None:
        return list(dist.get_process_group_ranks(group))
    return list(range(dist.get_world_size())) if dist.is_available() and dist.is_initialized() else None


def _in_mesh(mesh: DeviceMesh, data_dims: str | Sequence[str] | None) -> Coordinates:
    place = mesh.get_coordinate()
    if place is None:
        raise ConfigError(
            f"rank {dist.get_rank()} is not in the mesh that was given ({mesh}); give a mesh that contains it"
        )
    names = mesh.mesh_dim_names
    if names is None:
        if data_dims is not None or mesh.ndim != 1:
            raise ConfigError(
                f"the {mesh.ndim}-dimensional mesh has no dimension names, so it is unknown which of them divide the "
                "data; name them with init_device_mesh(mesh_dim_names=...)"
            )
        return Coordinates(place[0], mesh.size(0))
    chosen = _chosen_dims(names, data_dims)
    rank, world_size = 0, 1
    for dim, name in enumerate(names):
        if name in chosen:
            rank, world_size = rank * mesh.size(dim) + place[dim], world_size * mesh.size(dim)
    return Coordinates(rank, world_size)


def _chosen_dims(names: Sequence[str], data_dims: str | Sequence[str] | None) -> frozenset[str]:
    if data_dims is not None:
        chosen = frozenset([data_dims] if isinstance(data_dims, str) else data_dims)
        if unknown := sorted(chosen.difference(names)):
            raise ConfigError(f"data_dims {unknown} are not dimensions of the mesh, which has {list(names)}")
        return chosen
    if unclear := [name for name in names if name not in DATA_DIMS and name not in MODEL_DIMS]:
        raise ConfigError(
            f"it is unknown whether mesh dimensions {unclear} (of {list(names)}) divide the data; name those that do, "
            'for example data_dims=("dp",)'
        )
    return DATA_DIMS.intersection(names)


def _in_environment() -> Coordinates:
    texts = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if texts == (None, None):
        return Coordinates(0, 1)
    try:
        rank, world_size = (int(text or "") for text in texts)
    except ValueError:
        rank, world_size = -1, 0
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"the environment has RANK={texts[0]!r} and WORLD_SIZE={texts[1]!r}; both must be set, with "
            "0 <= RANK < WORLD_SIZE, as torchrun does, or neither"
        )
    return Coordinates(rank, world_size)
