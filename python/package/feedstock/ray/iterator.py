"""One rank's loader with the interface of Ray's ``DataIterator``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from .. import Batch, ConfigError, Loader, Pipeline
from .._check import one_of
from .._options import LoaderOptions, Output, documents_loader_options, takes_loader_options
from .._setup import for_trainer, needs_device
from .convert import CONVERT, FORMATS, Batches, Move, collated, torch_with, train_device

if TYPE_CHECKING:
    import numpy as np
    import torch
    from typing_extensions import Unpack

    from .._reports import Ledger

Format = Literal["default", "numpy", "pandas", "pyarrow"]

# Ray's methods that a pipeline makes unnecessary, and what to use instead.
_ELSEWHERE = {
    "iter_rows": "iterate and index the batch's rows",
    "iter_tf_batches": "use output='numpy'",
    "iter_jax_batches": "use output='numpy'",
    "materialize": "a pipeline streams; read the data set's files with the library that wrote them",
    "to_tf": "use output='numpy'",
    "to_torch": "iterate, or use iter_torch_batches()",
}


@documents_loader_options
class DataIterator:
    """The loader of a Ray Train worker's rank: the result of ``ray.train.get_dataset_shard(name)``.

    It has the methods of :class:`feedstock.Loader` (iteration, ``len``, ``set_epoch``, ``state_dict``, …) and of Ray's
    ``DataIterator`` (``iter_torch_batches``, ``iter_batches``, ``stats``, ``schema``). A training function for Ray Data
    needs no other loop. One that saves ``state_dict()`` resumes where the checkpoint was saved.

    It differs from Ray Data in two ways. Iterating continues where the last iteration stopped: an unfinished epoch is
    finished, and the next one follows. The pipeline sets batches and shuffling, which are the same for every world
    size.

    ``get_dataset_shard`` returns the same object each time in one worker. A restarted or resized group of workers gets
    new objects at the start of epoch 0, to be moved by ``load_state_dict``. The loader is opened when it is first
    needed, in the process that needs it. Until then the object can be pickled.

    With ``device="auto"``, the default, ``iter_torch_batches`` delivers on the worker's GPU: page-locked slots are
    copied while the model computes. Plain iteration, ``iter_batches`` and collate functions use host memory. If a
    program uses both, the loader is made again at the same position at each change, which costs a refill and begins a
    new ledger. Any other ``device`` applies to every method, and so does ``finish``.

    Args:
        pipeline: The pipeline.
        rank: The rank; default 0.
        world_size: The number of ranks; default 1.
        **options: See ``LoaderOptions``. The default of ``output`` is ``"torch"``, that of ``device`` is ``"auto"``.
    """

    @takes_loader_options(output="torch", device="auto")
    def __init__(
        self,
        pipeline: Pipeline | _Recipe,
        rank: int = 0,
        world_size: int = 1,
        **options: Unpack[LoaderOptions],
    ) -> None:
        one_of("output", options["output"], tuple(CONVERT))
        self._recipe = pipeline if isinstance(pipeline, _Recipe) else _Recipe(pipeline)
        self._rank, self._world_size = rank, world_size
        self._options = options
        self._output: Output = options["output"]
        self._loader: Loader | None = None
        self._opened: LoaderOptions = options  # those of the loader
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._loader is not None:
            raise TypeError(
                "an open DataIterator cannot be pickled, because its loader has threads and a position; "
                "send state_dict() instead"
            )
        return _unpickle, (self._recipe, self._rank, self._world_size, self._options)

    def __repr__(self) -> str:
        loader = self._loader
        where = "" if loader is None else f", epoch={loader.epoch}, position={loader.position}"
        return f"DataIterator(rank={self._rank}, world_size={self._world_size}{where})"

    @property
    def loader(self) -> Loader:
        """The :class:`feedstock.Loader`, which is opened now if it was not.

        It yields :class:`feedstock.Batch`; with ``map_python`` or ``map_rows``, the results of the functions. Another
        one takes over if a method needs batches elsewhere; see ``device``.
        """
        loader = self._loader
        return self._on(self._plain()) if loader is None else loader

    def _plain(self) -> LoaderOptions:
        """Returns the options of the loader for plain iteration."""
        return self._for(train_device() if needs_device(self._options) else None)

    def _for(self, device: Any, rows: Output | None = None) -> LoaderOptions:
        """Returns the options of the loader of batches for ``device``, which ``map_rows`` gives the form ``rows``."""
        pipeline = self._recipe.pipeline()
        has_functions = bool(pipeline._functions)
        options: LoaderOptions = {**self._options, "output": "torch"}
        options = for_trainer(options, device, has_functions=has_functions)
        if not has_functions:
            return {**options, "output": "batch"}  # of which every form is made
        return {**options, "output": rows if rows and pipeline._yields_rows else self._output}

    def _on(self, options: LoaderOptions) -> Loader:
        """Returns the loader with these options. If it had others, a new one takes over its position."""
        with self._lock:
            former = self._loader
            if former is not None and options == self._opened:
                return former
            made = self._recipe.pipeline().loader(self._rank, self._world_size, **options)
            if former is not None:
                made._take_over(former)
            self._loader, self._opened = made, options
            return made

    def _choose(self, options: LoaderOptions) -> None:
        """Replaces options; from the next iteration on."""
        self._options = {**self._options, **options}

    # The methods of feedstock.Loader

    def __iter__(self) -> Iterator[Any]:
        """Returns an iterator over an epoch, or the rest of one, whose batches have the form ``output``."""
        return map(
            CONVERT[self._output], self._on(self._plain())
        )  # unlike a generator, keeps no batch and so no slot

    def __len__(self) -> int:
        """Returns the steps of the whole current epoch, the same on all ranks."""
        return len(self.loader)

    @property
    def rank(self) -> int:
        """The rank; 0 if the data set is not split."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of ranks; 1 if the data set is not split."""
        return self._world_size

    @property
    def steps_left(self) -> int:
        """The remaining steps of the current epoch."""
        return self.loader.steps_left

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self.loader.epoch

    @property
    def position(self) -> int:
        """The position of the next global batch in the epoch's order, in samples."""
        return self.loader.position

    @property
    def batch_size(self) -> int | None:
        """Rows of this rank's batches; ``None`` if a total bounds them."""
        return self.loader.batch_size

    @property
    def global_batch_size(self) -> int | None:
        """Rows of a step over all ranks; ``None`` if a total bounds the batches."""
        return self.loader.global_batch_size

    @property
    def restart(self) -> bool:
        """Whether every ``iter()`` begins an epoch at its start."""
        return self._options["restart"]

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of ``epoch``, unless the next batch belongs to it."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position as a JSON-serializable dict under 1 KB: the same on all ranks, valid for any world size.

        See ``feedstock.Loader.state_dict``.
        """
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at ``state_dict()`` of any rank of any earlier group of workers."""
        self.loader.load_state_dict(dict(state))

    def seek(self, step: int) -> None:
        """Goes to a step of the current epoch."""
        self.loader.seek(step)

    def reconfigure(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        total: float | None = None,
        global_total: float | None = None,
    ) -> None:
        """Changes rank, world size or batch size between two steps; see ``feedstock.Loader.reconfigure``."""
        loader = self.loader
        loader.reconfigure(
            rank,
            world_size,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            total=total,
            global_total=global_total,
        )
        self._rank, self._world_size = loader.rank, loader.world_size

    def start_prefetch(self) -> None:
        """Begins to fetch and decode, for example while the training function builds its model.

        Before the first iteration, it prepares batches for ``iter_torch_batches()``.
        """
        loader = self._on(self._for(train_device())) if self._loader is None else self._loader
        loader.start_prefetch()

    def samples_in(self, step: int, epoch: int | None = None) -> list[np.ndarray]:
        """Returns the sample ids of a step: one array (uint64 [rows]) for each rank."""
        return self.loader.samples_in(step, epoch)

    def ledger(self) -> Ledger | None:
        """Returns the proof of exactly-once delivery; see ``feedstock.Loader.ledger``."""
        return self.loader.ledger()

    def close(self) -> None:
        """Stops the loader and frees its memory. Iterating again continues at the same position."""
        if self._loader is not None:
            self._loader.close()

    # The methods of Ray's DataIterator

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
        """Returns an iterable of batches as dicts of tensors on ``device``. Each iteration is an epoch or its rest.

        Strings, bytes and other columns without a tensor type are lists. ``sample_ids`` (int64) and ``valid`` (bool)
        are added.

        Args:
            prefetch_batches: No effect; see ``Pipeline.options(slots=…)``.
            batch_size: Rows of this rank's batches; default: those of the pipeline. Another number changes it from here
                on, and must be given on all ranks.
            dtypes: The dtype of all tensors of the pipeline's columns, or a dict by column; default: unchanged.
            device: The device; ``"auto"`` (default): the one that Ray Train gave this worker, or the CPU outside of a
                worker. For a GPU, the loader copies its page-locked slots while the model computes, unless
                ``collate_fn`` is given, the pipeline has Python functions, or the iterator's own option
                ``device`` is not ``"auto"``. Otherwise batches are moved when they are taken.
            collate_fn: A function of the batch as NumPy arrays by column (a ``pyarrow.Table`` or ``pandas.DataFrame``
                for Ray's ``ArrowBatchCollateFn`` or ``PandasBatchCollateFn``). Tensors in its result are moved.
            drop_last: Must agree with the pipeline's ``tail`` if given.
            local_shuffle_buffer_size: Must be ``None``; the pipeline's ``shuffle`` sets the order.
            local_shuffle_seed: Must be ``None``.
            pin_memory: Page-locks tensors in host memory before they are moved; default ``False``. No effect without
                CUDA.

        Raises:
            ConfigError: Arguments contradict each other or the pipeline.
        """
        if collate_fn is not None and dtypes is not None:
            raise ConfigError("collate_fn and dtypes exclude each other; convert in collate_fn")
        place = (train_device() or "cpu") if device == "auto" else device
        options = self._for(*((place, "torch") if collate_fn is None else (None, "numpy")))
        self._on(options)
        self._prepare(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        collate = torch_with(dtypes) if collate_fn is None else collated(collate_fn)
        move = Move(place, pin_memory)

        def convert(batch: Any) -> Any:
            return move(collate(batch))

        return Batches(lambda: map(convert, self._on(options)))

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
        """Returns an iterable of batches. Each iteration is an epoch or its rest.

        Args:
            batch_format: NumPy arrays by column (``"default"``, ``"numpy"``), ``"pyarrow"`` tables or ``"pandas"``
                frames. ``None`` means ``"pyarrow"``.

        The other arguments are those of :meth:`iter_torch_batches`.
        """
        options = self._for(None, "numpy")
        self._on(options)
        self._prepare(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        convert = FORMATS.get(batch_format or "pyarrow")
        if convert is None:
            raise ConfigError(
                f"batch_format must be one of {', '.join(map(repr, FORMATS))}; got {batch_format!r}"
            )
        return Batches(lambda: map(convert, self._on(options)))

    def stats(self) -> str:
        """Returns the loader's statistics as text, one line for each. ``loader.stats()`` returns numbers."""
        return "\n".join(f"{name}: {value}" for name, value in self.loader.stats().items())

    def schema(self) -> Any:
        """Returns columns and their Arrow types as a ``ray.data.Schema`` (``names``, ``types``, ``base_schema``).

        Reads one batch of the data set with a separate loader.
        """
        import pyarrow
        from ray.data import Schema

        pipeline = self._recipe.pipeline()
        if pipeline._yields_rows:
            raise ConfigError(
                "there is no schema: map_rows yields dicts of arrays, which have no Arrow types"
            )
        with pipeline.loader() as probe:
            batch = next(iter(probe))
        if not isinstance(batch, Batch):
            raise ConfigError(
                f"there is no schema: map_python returned {type(batch).__name__}, which has no columns"
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
                "local_shuffle_buffer_size and local_shuffle_seed must be None; got "
                f"{local_shuffle_buffer_size!r} and {local_shuffle_seed!r}: the pipeline sets the order, the same for "
                "every world size; use pipeline.shuffle(seed=…, window=…)"
            )
        loader = self.loader
        if batch_size is not None and batch_size != loader.batch_size:
            loader.reconfigure(batch_size=batch_size)
        if drop_last is not None:
            self._check_tail(drop_last)

    def _check_tail(self, drop_last: bool) -> None:
        step = self.loader.global_batch_size
        if step is None:
            raise ConfigError(f"drop_last must be None for batches that a total bounds; got {drop_last}")
        planned, samples = len(self.loader) * step, len(self._recipe.pipeline().dataset)
        if (drop_last and planned > samples) or (not drop_last and planned < samples):
            tail = "drop" if drop_last else "pad"
            raise ConfigError(
                f"drop_last={drop_last} contradicts the pipeline, whose epoch has {planned} rows for {samples} "
                f"samples; leave it out, or use batch(…, tail={tail!r}) in the pipeline"
            )


def _unpickle(recipe: _Recipe, rank: int, world_size: int, options: LoaderOptions) -> DataIterator:
    return DataIterator(recipe, rank, world_size, **options)


class _Recipe:
    """A pipeline that is pickled once and opened where it is needed; actors that pass it on do not open it."""

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
        from ray import cloudpickle  # which also pickles the lambdas of map_python

        return _Recipe, (cloudpickle.dumps(self._pipeline),)
