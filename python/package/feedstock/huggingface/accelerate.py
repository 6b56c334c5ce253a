"""Accelerate: this process's loader, whose place is saved with the rest of the state.

``Accelerator.prepare`` touches torch's DataLoader, modules, optimizers and schedulers, and passes everything
else. A loader is a plain iterable, so it may be given to ``prepare`` or not. Wrapping one in a torch
``DataLoader`` is what must not be done: ``prepare`` would shard what is sharded already, and a part of the
rows would never be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .. import torch as feedstock_torch
from .._agreement import of_all_ranks

if TYPE_CHECKING:
    from accelerate import Accelerator

    from .. import Loader, Pipeline


def coordinates(accelerator: Accelerator) -> feedstock_torch.Coordinates:
    """The data-parallel rank of this process: by the accelerator's device mesh if it has one (its tensor-,
    context- and sequence-parallel peers get the same batches), or its process index."""
    mesh = accelerator.torch_device_mesh
    if mesh is None:
        return feedstock_torch.Coordinates(accelerator.process_index, accelerator.num_processes)
    # named, since the mesh also carries flattened joins of its dimensions
    names = [name for name in mesh.mesh_dim_names or () if name in ("dp_replicate", "dp_shard")]
    return feedstock_torch.coordinates(mesh, data_dims=names) if names else feedstock_torch.Coordinates(0, 1)


def loader(
    accelerator: Accelerator,
    pipeline: Pipeline,
    *,
    output: Literal["batch", "numpy", "torch"] = "torch",
    restart: bool = False,
) -> Loader:
    """The loader of this process's data-parallel rank, registered with ``register_for_checkpointing``.

    Batches are on the CPU; move them with ``accelerate.utils.send_to_device(batch, accelerator.device)``.
    ``accelerator.accumulate(model)`` counts steps and knows no end of an epoch here: let
    ``gradient_accumulation_steps`` divide ``len(loader)``, or the epoch's last gradients are applied with the
    next epoch's first. In evaluation take rows where ``batch["valid"]`` and ``accelerator.gather``;
    ``gather_for_metrics`` knows the padding of torch's DataLoader only.

    Args:
        accelerator: made by every process, as always; its device mesh, if any, says who shares batches.
        pipeline: what to load; ``batch(n)`` is rows for each data-parallel rank, as torch's ``batch_size``.
        output: ``"torch"`` (default): a dictionary from column to tensor, with ``sample_ids`` (i64) and
            ``valid`` (bool); ``"numpy"``; or ``"batch"``, feedstock's own.
        restart: for evaluation: every ``iter()`` begins an epoch anew. Such a loader is not registered: it
            has no place to keep.

    Raises:
        ConfigError: as ``Pipeline.loader``.
    """
    rank, world_size = coordinates(accelerator)
    made = pipeline.loader(rank, world_size, output=output, restart=restart)
    made._agreement = of_all_ranks()
    if not restart:
        accelerator.register_for_checkpointing(made)
    return made
