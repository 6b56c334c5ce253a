"""Feedstock under PyTorch: which data-parallel rank this process is, and the loader of that rank.

    DeviceMesh ── the data-parallel dimensions ──┐
    process group, torch.distributed ────────────┼──▶ Coordinates(rank, world_size) ──▶ Pipeline.loader
    RANK, WORLD_SIZE as torchrun sets them ──────┘

Data is split over the data-parallel ranks and over nothing else: the tensor-, context- and pipeline-parallel peers of
one data-parallel rank compute one forward pass together, so all of them must be given the same batches. A
`DeviceMesh` says who is whose peer; without one every process is a data-parallel rank of its own.

There is little else here because little is needed: the loader is an iterable with `state_dict` and
`load_state_dict`, so `torch.distributed.checkpoint` saves it beside the model and torchdata takes it for `Stateful`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch.distributed as dist

from feedstock._agreement import TIMEOUT_SECONDS, Agreement
from feedstock.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from feedstock import Loader, Pipeline
    from feedstock.finish import Finish

__all__ = ["DATA_DIMS", "MODEL_DIMS", "Coordinates", "coordinates", "loader"]

#: Names of mesh dimensions over which data is split, as PyTorch's documentation, TorchTitan, Accelerate, DeepSpeed
#: and Lightning use them. All that occur in a mesh count: replicated and sharded data parallelism both split data.
DATA_DIMS = frozenset(
    ("dp", "ddp", "dp_replicate", "dp_shard", "replicate", "shard", "batch", "data", "data_parallel")
)

#: Names of mesh dimensions whose ranks work on the same samples. In neither list are those that mean different things
#: in different frameworks: `ep` may or may not lie inside data parallelism, and `fsdp` may include context parallelism.
MODEL_DIMS = frozenset(
    ("tp", "cp", "sp", "pp", "tensor", "context", "sequence", "pipeline", "model")
) | frozenset(
    ("tensor_parallel", "context_parallel", "sequence_parallel", "pipeline_parallel", "model_parallel")
)


class Coordinates(NamedTuple):
    """One data-parallel rank: what `Pipeline.loader` takes."""

    rank: int
    """0 to world_size - 1. Processes that share it get identical batches."""
    world_size: int
    """How many data-parallel ranks there are, at most the number of processes."""


def coordinates(
    mesh: DeviceMesh | None = None,
    *,
    group: ProcessGroup | None = None,
    data_dims: str | Sequence[str] | None = None,
) -> Coordinates:
    """The data-parallel coordinates of this process. Makes no collective call.

    Where they come from, first match:

    1. `mesh`: the position of this process along `data_dims`, counted in the mesh's own order of dimensions. Without
       `data_dims`, all dimensions whose names are in `DATA_DIMS`; a mesh with a dimension that is neither there nor
       in `MODEL_DIMS` is an error rather than a guess. A mesh of one dimension without a name is data-parallel.
    2. `group`: rank and size in this process group.
    3. `torch.distributed`, if it is initialised: the default group.
    4. The environment: `RANK` and `WORLD_SIZE`, as `torchrun` sets them.
    5. Rank 0 of 1.

    Raises:
        ConfigError: this process is not in the mesh or the group, or the mesh's data-parallel dimensions are unclear.
    """
    if mesh is not None:
        if group is not None:
            raise ConfigError(
                "a mesh and a process group were both given; give the one that data is split over"
            )
        return _in_mesh(mesh, data_dims)
    if data_dims is not None:
        raise ConfigError("data_dims names dimensions of a mesh, but there is no mesh; give mesh=")
    if group is not None or (dist.is_available() and dist.is_initialized()):
        rank = dist.get_rank(group)
        if rank < 0:
            raise ConfigError(
                "this process is not in the process group that was given; make its loader from a group or mesh it is in"
            )
        return Coordinates(rank, dist.get_world_size(group))
    return _in_environment()


def loader(
    pipeline: Pipeline,
    mesh: DeviceMesh | None = None,
    *,
    group: ProcessGroup | None = None,
    data_dims: str | Sequence[str] | None = None,
    output: Literal["batch", "numpy", "torch"] = "torch",
    restart: bool = False,
    device: Any = None,
    finish: Mapping[str, Finish] | None = None,
    depth: int = 2,
    static: bool = False,
    nvjpeg: float = 0.0,
    compare_timeout: float = TIMEOUT_SECONDS,
) -> Loader:
    """The loader of this process's data-parallel rank.

    Make it after `init_process_group` or `init_device_mesh`; it makes no collective call. Every process must describe
    the same pipeline. At the first batch, the processes compare what they are about to load, through the process
    group's store: data set and order (the plan's fingerprint), epoch, position, ops, batch size and world size. If two
    differ, all of them raise `ConfigError`, which names the ranks and what differs.

    Args:
        pipeline: What to load; its batch size counts rows per data-parallel rank unless `global_batch_size` was given.
        mesh, group, data_dims: As for `coordinates`.
        output: `"torch"`: a plain `dict` of column name to `torch.Tensor` or, for strings, bytes and nested values,
            `list`; with `"sample_ids"` (int64) and `"valid"` (bool) added, one entry a row. The default here, because
            frameworks that move batches to a device know how to rebuild a `dict`. `"batch"`: `feedstock.Batch`.
            `"numpy"`: as `"torch"` with arrays.
        restart: Begin an epoch anew at every `iter()`, for evaluation. By default iterating goes on where it stopped.
        device, finish, depth, static, nvjpeg: Batches on a GPU: as for `Pipeline.loader`.
        compare_timeout: Seconds, at least 0, that the first batch waits for the other processes of the mesh or the
            group. Default 30. Where some of them never ask this loader for a batch, the others log a warning after
            that time and go on. 0: nothing is compared.

    Raises:
        ConfigError: as `coordinates` and `Pipeline.loader`; among others if the data set holds less than one global
            batch and the tail is dropped.
    """
    if not compare_timeout >= 0:
        raise ConfigError(f"compare_timeout must be a number of seconds >= 0; got {compare_timeout!r}")
    rank, world_size = coordinates(mesh, group=group, data_dims=data_dims)
    made = pipeline.loader(
        rank,
        world_size,
        output=output,
        restart=restart,
        device=device,
        finish=finish,
        depth=depth,
        static=static,
        nvjpeg=nvjpeg,
    )
    made._agreement = Agreement(_members(mesh, group), compare_timeout)
    return made


def _members(mesh: DeviceMesh | None, group: ProcessGroup | None) -> list[int] | None:
    """Ranks in the default group of the processes that make the loader; None where there is no group yet."""
    if mesh is not None:
        return [int(rank) for rank in mesh.mesh.flatten().tolist()]
    if group is not None:
        return list(dist.get_process_group_ranks(group))
    return list(range(dist.get_world_size())) if dist.is_available() and dist.is_initialized() else None


def _in_mesh(mesh: DeviceMesh, data_dims: str | Sequence[str] | None) -> Coordinates:
    place = mesh.get_coordinate()
    if place is None:
        raise ConfigError(
            f"rank {dist.get_rank()} is not in the mesh that was given ({mesh}); only its ranks can load from it"
        )
    names = mesh.mesh_dim_names
    if names is None:
        if data_dims is not None or mesh.ndim != 1:
            raise ConfigError(
                f"the {mesh.ndim}-dimensional mesh has no dimension names, so which of them data is split over is "
                "unknown; name them in init_device_mesh(mesh_dim_names=...)"
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
            f"whether data is split over mesh dimensions {unclear} (of {list(names)}) is unknown; give "
            'data_dims=, for example data_dims=("dp",)'
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
