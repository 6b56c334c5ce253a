"""Accelerate: this process's loader, whose position is saved with the rest of the state.

``Accelerator.prepare`` changes torch's DataLoader, modules, optimizers and schedulers, and returns everything else
unchanged. A loader is a plain iterable, so it may be given to ``prepare`` or not. Do not wrap it in a torch
``DataLoader``: ``prepare`` would shard it again, and some rows would never be read.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .. import torch as feedstock_torch
from .._agreement import of_all_ranks
from .._options import LoaderOptions, takes_loader_options
from .._setup import for_trainer

if TYPE_CHECKING:
    from accelerate import Accelerator
    from typing_extensions import Unpack

    from .. import Loader, Pipeline


def coordinates(accelerator: Accelerator) -> feedstock_torch.Coordinates:
    """Returns the data-parallel rank of this process: by the accelerator's device mesh, else its process index.

    Tensor-, context- and sequence-parallel peers in the mesh get the same batches.
    """
    mesh = accelerator.torch_device_mesh
    if mesh is None:
        return feedstock_torch.Coordinates(accelerator.process_index, accelerator.num_processes)
    # By name, because the mesh also has flattened joins of its dimensions.
    names = [name for name in mesh.mesh_dim_names or () if name in ("dp_replicate", "dp_shard")]
    return feedstock_torch.coordinates(mesh, data_dims=names) if names else feedstock_torch.Coordinates(0, 1)


@takes_loader_options(output="torch", device="auto")
def loader(accelerator: Accelerator, pipeline: Pipeline, **options: Unpack[LoaderOptions]) -> Loader:
    """Makes the loader of this process's data-parallel rank and registers it with ``register_for_checkpointing``.

    The default of ``output`` is ``"torch"``. The default of ``device`` is ``"auto"``: batches are on
    ``accelerator.device`` if that is a GPU, copied from page-locked memory while the model computes. With
    ``Accelerator(device_placement=False)`` they are in host memory.

    The accelerator does not keep the loader alive. Under ``accelerate.utils.find_executable_batch_size``, make the
    loader in the decorated function: when an attempt ends with an error, its loader frees its memory and is not
    checkpointed any more.

    ``accelerator.accumulate(model)`` counts steps and does not see an epoch's end. Let
    ``gradient_accumulation_steps`` divide ``len(loader)``, or the epoch's last gradients are applied with the next
    epoch's first. For evaluation, use the rows where ``batch["valid"]`` is true and ``accelerator.gather``;
    ``gather_for_metrics`` handles the padding of torch's DataLoader only.

    Args:
        accelerator: The accelerator, which every process makes. Its device mesh, if any, states which processes share
            batches.
        pipeline: The pipeline. Its ``batch_size`` counts rows for each data-parallel rank.
        **options: See ``LoaderOptions``. A loader with ``restart=True`` has no position to save and is not registered.

    Raises:
        ConfigError: As for ``Pipeline.loader``.
    """
    rank, world_size = coordinates(accelerator)
    device = accelerator.device if accelerator.device_placement else None
    options = for_trainer(options, device, has_functions=bool(pipeline._functions))
    made = pipeline.loader(rank, world_size, **options)
    made._agreement = of_all_ranks()
    if not options["restart"]:
        position = _Position(made)
        accelerator.register_for_checkpointing(position)
        weakref.finalize(made, _forget, weakref.ref(accelerator), position).atexit = False
    return made


class _Position:
    """The state of a loader that it does not keep alive."""

    def __init__(self, loader: Loader) -> None:
        self._loader = weakref.ref(loader)

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's state."""
        return self._alive().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moves the loader."""
        self._alive().load_state_dict(state)

    def _alive(self) -> Loader:
        loader = self._loader()
        assert loader is not None, "the accelerator forgets it with the loader"
        return loader


def _forget(accelerator: weakref.ref[Accelerator], position: _Position) -> None:
    """Reverses ``register_for_checkpointing``, for which Accelerate has no function."""
    if (alive := accelerator()) is not None and position in alive._custom_objects:
        alive._custom_objects.remove(position)
