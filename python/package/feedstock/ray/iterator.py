"""One rank's loader in the shape of Ray's ``DataIterator``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from .. import Batch, ConfigError, Loader, Pipeline, Workers
from .convert import CONVERT, FORMATS, Batches, Move, collated, torch_with

if TYPE_CHECKING:
    import numpy as np
    import torch

Output = Literal["batch", "numpy", "torch"]
Format = Literal["default", "numpy", "pandas", "pyarrow"]

# Ray's names for what a pipeline already is, and where that is said.
_ELSEWHERE = {
    "iter_rows": "iterate and index the batch's rows",
    "iter_tf_batches": "use output='numpy'",
    "iter_jax_batches": "use output='numpy'",
    "materialize": "a pipeline streams; read the data set's files with what wrote them",
    "to_tf": "use output='numpy'",
    "to_torch": "iterate, or use iter_torch_batches()",
}


class DataIterator:
    """What ``ray.train.get_dataset_shard(name)`` returns: the loader of this worker's rank.

    It has the face of :class:`feedstock.Loader` (iteration, ``len``, ``set_epoch``, ``state_dict``, …) and
    that of Ray's ``DataIterator`` (``iter_torch_batches``, ``iter_batches``, ``stats``, ``schema``), so
    that a training function for Ray Data needs no other loop, and one that saves ``state_dict()`` resumes
    where its checkpoint stood.

    Two differences from Ray Data's: iterating goes on where the last iteration stopped (an epoch that was
    left in the middle is finished, a finished one is followed by the next), and the rows of a batch and their
    shuffle are the pipeline's, the same for every world size.

    ``get_dataset_shard`` returns the same object each time in one worker; a restarted or resized group of
    workers gets new ones, at the start of epoch 0, to be moved by ``load_state_dict``. The loader is opened
    when it is first needed, in the process that needs it; until then the object pickles.
    """

    def __init__(
        self,
        pipeline: Pipeline | _Recipe,
        rank: int = 0,
        world_size: int = 1,
        *,
        output: Output = "torch",
        restart: bool = False,
        workers: str | Workers | None = None,
    ) -> None:
        if output not in ("batch", "numpy", "torch"):
            raise ConfigError(f"output must be 'batch', 'numpy' or 'torch'; got {output!r}")
        self._recipe = pipeline if isinstance(pipeline, _Recipe) else _Recipe(pipeline)
        self._rank, self._world_size = rank, world_size
        self._output: Output = output
        self._restart = restart
        self._workers = workers
        self._loader: Loader | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._loader is not None:
            raise TypeError(
                "this DataIterator is open: its loader has threads and a position, which cannot be pickled; "
                "send state_dict() instead"
            )
        place = self._rank, self._world_size
        return _unpickle, (self._recipe, *place, self._output, self._restart, self._workers)

    def __repr__(self) -> str:
        loader = self._loader
        where = "" if loader is None else f", epoch={loader.epoch}, position={loader.position}"
        return f"DataIterator(rank={self._rank}, world_size={self._world_size}{where})"

    @property
    def loader(self) -> Loader:
        """The :class:`feedstock.Loader` below, opened now if it was not.

        It yields :class:`feedstock.Batch`; with ``map_python``, what its functions make of what ``output``
        says.
        """
        with self._lock:
            if self._loader is None:
                pipeline = self._recipe.pipeline()
                # functions of map_python take what `output` says; without them every form is made of a Batch
                output = self._output if pipeline._functions else "batch"
                self._loader = pipeline.loader(
                    self._rank, self._world_size, workers=self._workers, output=output, restart=self._restart
                )
            return self._loader

    # The face of feedstock.Loader

    def __iter__(self) -> Iterator[Any]:
        """One epoch, or the rest of an unfinished one, as ``output`` says."""
        return map(CONVERT[self._output], self.loader)  # unlike a generator, keeps no batch and so no slot

    def __len__(self) -> int:
        """Steps of the whole current epoch, the same on all ranks."""
        return len(self.loader)

    @property
    def rank(self) -> int:
        """The rank it reads for; 0 where the data set is not split."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of ranks it is split among; 1 where it is not."""
        return self._world_size

    @property
    def steps_left(self) -> int:
        """Steps of the current epoch still to come."""
        return self.loader.steps_left

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self.loader.epoch

    @property
    def position(self) -> int:
        """The place in the epoch's order of the next global batch, in samples."""
        return self.loader.position

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch of one rank; ``None`` where batches are bounded by a total."""
        return self.loader.batch_size

    @property
    def global_batch_size(self) -> int | None:
        """Rows of all ranks' batches of a step; ``None`` where batches are bounded by a total."""
        return self.loader.global_batch_size

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of ``epoch``, unless the next batch is already one of it."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Under 1 KB, JSON; the same on all ranks, and good for every world size. See
        ``feedstock.Loader``."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from ``state_dict()`` of any rank of any earlier group of workers."""
        self.loader.load_state_dict(dict(state))

    def seek(self, step: int) -> None:
        """Goes to a step of the current epoch."""
        self.loader.seek(step)

    def start_prefetch(self) -> None:
        """Begins to fetch and decode now, for a training function that still builds its model."""
        self.loader.start_prefetch()

    def samples_in(self, step: int, epoch: int | None = None) -> list[np.ndarray]:
        """The sample ids of a step, u64, one array for each rank."""
        return self.loader.samples_in(step, epoch)

    def ledger(self) -> dict[str, Any] | None:
        """What this rank was promised and got in the current epoch; ``None`` before anything runs."""
        return self.loader.ledger()

    def close(self) -> None:
        """Ends the loader's threads; iterating again goes on where it was left."""
        if self._loader is not None:
            self._loader.close()

    # The face of Ray's DataIterator

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = None,
        dtypes: torch.dtype | Mapping[str, torch.dtype] | None = None,
        device: str | torch.device = "auto",
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool | None = None,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pin_memory: bool = False,
    ) -> Batches:
        """Batches as dictionaries of tensors, on ``device``; each iteration is one epoch or the rest of one.

        Strings, bytes and other columns without a tensor type are lists. ``sample_ids`` (i64) and ``valid``
        (bool) are added.

        Args:
            prefetch_batches: no effect; the pipeline prepares ahead, see ``Pipeline.options(slots=…)``.
            batch_size: rows of a batch of this rank. ``None`` (default) is the pipeline's; another number
                changes it from here on, and must then be given on all ranks.
            dtypes: of all tensors of the pipeline's columns, or by column.
            device: ``"auto"`` is the device that Ray Train gave this worker, or the CPU outside one.
            collate_fn: gets the batch as NumPy arrays by column (a ``pyarrow.Table`` or ``pandas.DataFrame``
                if it is Ray's ``ArrowBatchCollateFn`` or ``PandasBatchCollateFn``); tensors in what it
                returns are moved.
            drop_last: decides nothing, the pipeline's ``tail`` does; one that contradicts it is an error.
            local_shuffle_buffer_size, local_shuffle_seed: refused, since the pipeline's ``shuffle`` decides.
            pin_memory: page-locks tensors before they are moved; no effect without CUDA.

        Raises:
            ConfigError: arguments that contradict each other or the pipeline.
        """
        if collate_fn is not None and dtypes is not None:
            raise ConfigError("collate_fn and dtypes exclude each other: convert in collate_fn")
        self._prepare(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        collate = torch_with(dtypes) if collate_fn is None else collated(collate_fn)
        move = Move(device, pin_memory)

        def convert(batch: Any) -> Any:
            return move(collate(batch))

        return Batches(lambda: map(convert, self.loader))

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = None,
        batch_format: Format | None = "default",
        drop_last: bool | None = None,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Batches:
        """Batches as NumPy arrays by column (``"default"``, ``"numpy"``), ``"pyarrow"`` tables or
        ``"pandas"`` frames.

        ``None`` is ``"pyarrow"``. The other arguments are those of :meth:`iter_torch_batches`.
        """
        self._prepare(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        convert = FORMATS.get(batch_format or "pyarrow")
        if convert is None:
            raise ConfigError(
                f"batch_format must be one of {', '.join(map(repr, FORMATS))}; got {batch_format!r}"
            )
        return Batches(lambda: map(convert, self.loader))

    def stats(self) -> str:
        """The loader's statistics as text, a line each; ``loader.stats()`` has the numbers."""
        return "\n".join(f"{name}: {value}" for name, value in self.loader.stats().items())

    def schema(self) -> Any:
        """Columns and their Arrow types, as a ``ray.data.Schema`` (``names``, ``types``, ``base_schema``).

        Reads one batch of the data set, with a loader of its own.
        """
        import pyarrow
        from ray.data import Schema

        with self._recipe.pipeline().loader() as probe:
            batch = next(iter(probe))
        if not isinstance(batch, Batch):
            raise ConfigError(
                f"map_python makes {type(batch).__name__}, which has no columns: there is no schema"
            )
        return Schema(pyarrow.record_batch(batch).schema)

    def __getattr__(self, name: str) -> Any:
        instead = _ELSEWHERE.get(name)
        if instead is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(f"feedstock's DataIterator has no {name}: {instead}")

    def _prepare(
        self,
        batch_size: int | None,
        drop_last: bool | None,
        local_shuffle_buffer_size: int | None,
        local_shuffle_seed: int | None,
    ) -> None:
        if local_shuffle_buffer_size is not None or local_shuffle_seed is not None:
            raise ConfigError(
                "local_shuffle_buffer_size and local_shuffle_seed have no place here: the order is the "
                "pipeline's, the same for every world size; use pipeline.shuffle(seed=…, window=…)"
            )
        loader = self.loader
        if batch_size is not None and batch_size != loader.batch_size:
            loader.reconfigure(batch_size=batch_size)
        if drop_last is not None:
            self._check_tail(drop_last)

    def _check_tail(self, drop_last: bool) -> None:
        step = self.loader.global_batch_size
        if step is None:
            raise ConfigError("drop_last has no meaning for batches bounded by a total: leave it out")
        planned, samples = len(self.loader) * step, len(self._recipe.pipeline().dataset)
        if (drop_last and planned > samples) or (not drop_last and planned < samples):
            tail = "drop" if drop_last else "pad"
            raise ConfigError(
                f"drop_last={drop_last} contradicts the pipeline, whose epoch has {planned} rows for {samples} "
                f"samples: leave it out, or say batch(…, tail={tail!r}) in the pipeline"
            )


def _unpickle(
    recipe: _Recipe, rank: int, world_size: int, output: Output, restart: bool, workers: str | Workers | None
) -> DataIterator:
    return DataIterator(recipe, rank, world_size, output=output, restart=restart, workers=workers)


class _Recipe:
    """A pipeline, pickled once and opened where it is needed: the actor that hands it on need not open it."""

    def __init__(self, pipeline: Pipeline | bytes) -> None:
        self._pipeline = pipeline

    def pipeline(self) -> Pipeline:
        if isinstance(self._pipeline, bytes):
            from ray import cloudpickle

            self._pipeline = cloudpickle.loads(self._pipeline)
        assert isinstance(self._pipeline, Pipeline)
        return self._pipeline

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self._pipeline, bytes):
            return _Recipe, (self._pipeline,)
        from ray import cloudpickle  # also takes the lambdas of map_python

        return _Recipe, (cloudpickle.dumps(self._pipeline),)
