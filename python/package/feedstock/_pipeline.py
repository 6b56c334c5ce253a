"""What is done to which samples, in which order and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import numpy as np

from feedstock._check import batch_sizes, number, one_of, real, seconds, text, whole, whole_or_none
from feedstock._forecasts import Forecasts, function_text
from feedstock._joint import JointColumn, check_box_crop, joint_steps
from feedstock._loader import Loader
from feedstock._nulls import NullsOf, plain_nulls
from feedstock._options import LoaderOptions, takes_loader_options
from feedstock._order import Order
from feedstock._pickles import named_arguments
from feedstock._preview import Preview, image_layouts, preview
from feedstock._rows.function import RowFunction, row_function
from feedstock._rows.spec import TensorSpec
from feedstock._steps import FromOutput, Functions, R
from feedstock._views import Views, split, view_step
from feedstock.errors import ConfigError
from feedstock.ops import Op
from feedstock.ops._op import chain_json, flatten

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from feedstock._dataset import Dataset
    from feedstock._feedstock import Batch
    from feedstock._options import OptionsWithoutOutput

T = TypeVar("T")


class Pipeline(Order[R], Forecasts[R]):
    """A data set, the ops on its columns, an order, and batches. Made by ``Dataset.map``, ``.shuffle`` or ``.batch``.

    Immutable: every method returns a new pipeline. Pipelines that were made from one another share threads. Picklable
    if its Python functions are: the pickle is a recipe, and unpickling opens the data set again.
    """

    dataset: Dataset

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._native = dataset._native.pipeline()
        self._steps = ()
        self._functions = dataset._functions

    def map(
        self,
        column: str | Mapping[str, JointColumn],
        *ops: Op | Views | Iterable[Op | Views],
        output: str | None = None,
        pad_value: float = 0.0,
        key: str | None = None,
        max_images: int | None = None,
    ) -> Self:
        """Runs the encoded bytes or text of ``column`` through ops, sample by sample, on the pipeline's threads.

        One column may be mapped several times, to different outputs. Unmapped columns are passed on unchanged.

        A dict maps several columns by the same ops with the same random numbers, such as an image and its mask:
        ``map({"image": fs.image(), "mask": fs.mask()}, fs.random_resized_crop(224), fs.horizontal_flip())``. Each
        column is read as its value states; boxes and keypoints follow the first image. A joint map has no ``output``
        and no ``pad_value``.

        Several crops of an image, which is decoded once, are ``fs.views({…})`` after ``fs.decode_image()``. The results
        have the names of the views, so such a map has no ``output``, ``pad_value`` and ``key``.

        If ``column`` has a list of encoded images for each sample, the ops run on every image, with independent random
        numbers. The tensor [images of all rows, height, width, 3] has the images of row 0, then those of row 1 and so
        on; ``<output>_length`` has their number in each row. See ``docs/python/lists.md``.

        Args:
            column: A column of encoded images, lists of images, audio or text; or a dict of ``fs.image``, ``fs.mask``,
                ``fs.boxes`` and ``fs.keypoints`` by column.
            *ops: The ops, in order, such as ``fs.decode_image()``; lists of ops are joined. ``fs.views`` may be the
                last.
            output: The name of the resulting tensor [rows, …]; default: ``column``. It must not be the name of another
                column that no map reads.
            pad_value: Variable-length rows (waveforms, features, tokens) are padded with this value to the longest of
                the batch; default 0. The column ``<output>_length`` (int64 [rows]) has their lengths.
            key: Names the random numbers of this map. Maps with equal keys draw the same numbers for a sample, whatever
                columns they read: the same crop of an image and of its mask. Default: the first map of a column draws
                as the only one would; each further map draws by the name of its output, so that two random crops of
                one image differ.
            max_images: The most images of a sample, for columns of lists of images; default 256. A sample with more is
                a bad sample.

        Raises:
            ConfigError: An argument is not valid. Names of columns are checked when a loader is made.

        Example:
            >>> chain = [fs.decode_image(), fs.random_resized_crop(24), fs.to_chw()]
            >>> pipeline = fs.Dataset(images).map("image", chain, output="pixels").batch(2)
            >>> batch = next(iter(pipeline.loader()))
            >>> batch["pixels"].shape, batch["pixels"].dtype
            ((2, 3, 24, 24), 'uint8')
        """
        if self.dataset._functions:
            raise ConfigError(
                f"map runs ops on stored columns, and those of {self.dataset._functions[0]} are made by its Python; "
                "transform them there, or by map_rows"
            )
        if key is not None and (not isinstance(key, str) or not key):
            raise ConfigError(f"key must be a non-empty string; got {key!r}")
        if max_images is not None and whole("max_images", max_images, 1) >= 2**32:
            raise ConfigError(f"max_images must be below 2**32; got {max_images}")
        plain, views = split(ops)
        if max_images is not None and (isinstance(column, Mapping) or views is not None):
            raise ConfigError(
                "max_images is for a column of lists of images, which is mapped alone and without fs.views"
            )
        if isinstance(column, Mapping):
            if views is not None:
                raise ConfigError(
                    "masks, boxes and keypoints do not follow fs.views; map the image alone, by the name of its column"
                )
            if output is not None or pad_value != 0.0:
                raise ConfigError(
                    "a joint map takes no output and no pad_value; its results have the columns' names"
                )
            return self._map_jointly(column, plain, key)
        if views is not None:
            if output is not None or pad_value != 0.0 or key is not None:
                raise ConfigError(
                    "a map with fs.views takes no output, pad_value and key; its results have the names of the views, "
                    "which also name their random numbers"
                )
            return self._with("views", **view_step(text("column", column), plain, views))
        plain = list(flatten(plain))
        check_box_crop(plain)
        return self._with(
            "map",
            column=text("column", column),
            output=column if output is None else text("output", output),
            ops=chain_json(plain),
            pad_value=number("pad_value", pad_value),
            key=key,
            max_images=max_images,
        )

    def _map_jointly(
        self, columns: Mapping[str, JointColumn], ops: Iterable[Op | Iterable[Op]], key: str | None
    ) -> Self:
        mapped = {
            arguments["column"] for method, arguments in self._steps if method in ("map", "views", "annotate")
        }
        if key is None and not mapped.isdisjoint(columns):
            # A column's first map draws without a key, every further one by its output.
            key = "+".join(columns)
        pipeline = self
        for method, arguments in joint_steps(columns, ops, key):
            pipeline = pipeline._with(method, **arguments)
        return pipeline

    def map_rows(
        self,
        fn: Callable[[dict[str, Any], np.random.Generator], Mapping[str, Any]],
        *,
        inputs: Iterable[str] | None = None,
        outputs: Mapping[str, TensorSpec] | None = None,
        executor: Literal["process", "thread", "worker"] = "process",
        num_workers: int | None = None,
        timeout: float | None = None,
        version: str = "",
    ) -> Self:
        """Runs ``fn(row, rng)`` on every sample, in processes of this machine or of workers, after all maps.

        The loader needs ``output="numpy"`` or ``"torch"`` and batches in host memory. Columns that ``fn`` returns are
        added to the batch, or take the place of columns with their names. Of several functions, each gets the
        results of those before it; functions of ``map_python`` come after all of them.

        ``row`` is a dict of the sample's columns: arrays without padding, NumPy scalars, ``str``, ``bytes``, lists.
        ``fn`` may change them. ``rng`` depends on seed, epoch, sample id and the number of the function only. A
        function that takes its random numbers from ``rng`` returns the same for any number of ranks and workers,
        and after a resume.

        A sample on which ``fn`` raises, or returns other columns than ``outputs``, is a bad sample: see ``on_error``.
        So is one whose process ends twice. See ``docs/python/rows.md``.

        Args:
            fn: Returns a mapping from column to an array, a CPU tensor or a number. It must be pure.
            inputs: The columns that ``fn`` gets; default: all. What is left out is not copied.
            outputs: The dtype and shape of every column that ``fn`` returns. Default: ``loader()`` runs ``fn`` on the
                first sample of the data set.
            executor: ``"process"`` (default): new Python processes, to which cloudpickle sends ``fn``. ``"thread"``:
                threads of this process, for functions that release the GIL. ``"worker"``: processes of the loader's
                ``workers=``, which must allow code (``python -m feedstock worker --allow-code``); without workers, as
                ``"process"``. A worker can import only modules that are installed there.
            num_workers: Processes or threads; default: the CPU threads of the pipeline (see ``options``). With
                ``executor="worker"``, processes of each worker; default: its CPU threads.
            timeout: Seconds that one row may take in a process. A process that takes longer is killed. Default: no
                limit; after 10 s, a warning names the sample.
            version: Change it with the function. A state that was saved with another name or version of the function
                is loaded with a warning.

        Raises:
            ConfigError: An argument is not valid, or the pipeline has functions of ``map_python``.
            TypeError: ``fn`` is not callable.

        Example:
            >>> import numpy as np
            >>> def brighter(row, rng):
            ...     return {"image": row["image"] * np.float32(rng.uniform(0.8, 1.2)), "is_first": row["label"] == 0}
            >>> pipeline = fs.Dataset(images).map("image", fs.decode_image(), fs.resize((8, 8))).batch(4)
            >>> with pipeline.map_rows(brighter, num_workers=1).loader(output="numpy") as loader:
            ...     batch = next(iter(loader))
            >>> batch["image"].dtype, batch["image"].shape, batch["is_first"].dtype
            (dtype('float32'), (4, 8, 8, 3), dtype('bool'))
        """
        if not all(isinstance(one, RowFunction) for one in self._functions):
            raise ConfigError(
                "map_rows must come before map_python: functions of batches return any value, which may have no rows"
            )
        added = row_function(fn, inputs, outputs, executor, num_workers, timeout, version)
        return self._changed(self._native, self._steps, (*self._functions, added))

    def map_python(self, fn: Callable[[Any], T], *, num_threads: int | None = None) -> Pipeline[T]:
        """Runs ``fn(batch)`` on every batch in this process; the loader yields the results, in order.

        Each function has a separate thread pool. With one thread, ``fn`` runs on one batch at a time, in order. Of
        several functions, each gets the result of the one before it. Batches in functions hold slots, so the loader
        gets more: the sum of all functions' threads, plus one. Functions that hold the GIL run one at a time with any
        number of threads; prefer ops.

        On a GPU, ``fn`` runs on torch's current stream of the thread that iterates the loader.

        Args:
            fn: Gets what the loader's ``output`` states: ``fs.Batch``, or a dict of arrays or tensors.
            num_threads: Threads of this function, at least 1; default 1.

        Raises:
            TypeError: ``fn`` is not callable.
        """
        if not callable(fn):
            raise TypeError(f"fn must be a function of a batch; got {fn!r}")
        num_threads = whole_or_none("num_threads", num_threads, 1)
        added = (*self._functions, (fn, num_threads))
        return cast("Pipeline[T]", self._changed(self._native, self._steps, added))

    def on_error(self, policy: Literal["raise", "skip"], *, max_fraction: float = 0.01) -> Self:
        """Sets what happens to samples that cannot be decoded, or on which a function of ``map_rows`` fails.

        Args:
            policy: ``"raise"`` (default): SampleError, with the sample's name. ``"skip"``: the row is filled with the
                nearest good sample of the batch, marked False in ``batch.valid``, and listed in
                ``loader.skip_report()``. Ranks stay in step.
            max_fraction: With ``"skip"``: SampleError if more than this share of an epoch's samples was skipped;
                default 0.01.

        Example:
            >>> data = fs.Dataset(damaged)  # 8 images, one of which is not an image
            >>> pipeline = data.map("image", fs.decode_image(), fs.resize((8, 8))).batch(8)
            >>> loader = pipeline.on_error("skip", max_fraction=0.2).loader()
            >>> int(next(iter(loader)).valid.sum()), loader.skip_report()["count"]
            (7, 1)
        """
        one_of("on_error", policy, ("raise", "skip"))
        share = real("max_fraction", max_fraction, "0.0 to 1.0", lambda number: 0.0 <= number <= 1.0)
        return self._with("on_error", policy=policy, max_fraction=share)

    def nulls(self, nulls: NullsOf | Mapping[str, NullsOf]) -> Self:
        """Sets what missing values become in columns of numbers or flags: the same form in every batch.

        Without a setting, a column is a list in every batch if statistics prove nulls: the null counts of Parquet
        footers, tables in memory, or a part of a mix or a concatenation that lacks the column. If a filter keeps only
        some of a data set's samples, its counts prove nothing. Every other column is a tensor in every batch, and a
        sample with a null in it is a bad sample: see ``on_error``.

        Args:
            nulls: A setting for all columns, or a dict by column, such as ``{"label": -1}``. Settings by column have
                precedence.

                - ``"list"``: the column is a Python list with ``None`` (in Arrow, a column with nulls).
                - A value: the column is a tensor with this value for nulls. It must fit the column's type: ``True`` or
                  ``False`` for flags, an integer in range for integers, a number for floats.
                - ``"mask"``: the column is a tensor with 0 for nulls, and ``"<column>_mask"`` is a tensor of flags of
                  the same shape, ``True`` where a value is present. As the setting for all columns, it adds flags to
                  the columns that may have nulls by their schema.

        Raises:
            ConfigError: A setting is not valid. Columns and values are checked when a loader is made.
        """
        changed = self
        settings = nulls.items() if isinstance(nulls, Mapping) else [(None, nulls)]
        for column, to in settings:
            changed = changed._with("nulls", column=column, to=plain_nulls(to))
        return changed

    def epochs(self, epochs: int) -> Self:
        """Ends after this number of epochs, at least 1, so that later ones are not prefetched; default: no end."""
        return self._with("epochs", epochs=whole("epochs", epochs, 1))

    def options(
        self,
        *,
        threads: int | None = None,
        slots: int | None = None,
        budget_bytes: int | None = None,
        prefetch_bytes: int | None = None,
        decoder_memory: int | None = None,
        row_index_bytes: int | None = None,
        held_bytes: int | None = None,
        deadline: float | None = None,
    ) -> Self:
        """Bounds threads, memory and waiting.

        The memory of a loader is at most ``budget_bytes`` + slots + 200 MB + ``threads`` × ``decoder_memory``. With
        the defaults and 8 threads: 1 GiB + 4 batches + 200 MB + 512 MiB. A process that crops JPEGs takes up to
        ``row_index_bytes`` more.

        Args:
            threads: The most CPU threads that work for this pipeline's loaders at a time. They belong to the one pool
                of the process. Default: the CPUs that Ray assigned, if more than 1; else the CPUs that the process may
                use (affinity, cgroup quota), divided by ``LOCAL_WORLD_SIZE``.
            slots: Batches in memory for each loader, at least 2; default 4: 2 ready, 1 being written, 1 in use.
            budget_bytes: Bytes of fetched blocks in memory for each loader, decompressed (images and audio stay
                encoded); default 1 GiB, twice the default shuffle window. With ``local=``, a batch that this machine
                decodes itself may take half of them.
            prefetch_bytes: Bytes that each loader fetches for batches that have no slot yet; default 64 MiB for data
                on a local disk, else 128 MiB. The next two batches are fetched in any case, and no more than 64. Of
                files on a local disk, no more than these bytes are kept for the next epoch, since the operating system
                caches files.
            decoder_memory: Bytes of working memory of each CPU thread for one sample: the decoded image or waveform,
                and what the decoder and ops need in addition. Default 64 MiB, a 22-megapixel RGB image. A sample that
                needs more borrows the rest from ``budget_bytes`` until it is decoded. One that needs more than
                ``decoder_memory`` and half of ``budget_bytes`` (with ``local=``, a quarter) is a bad sample: see
                ``on_error``.
            row_index_bytes: Bytes that the process keeps to remember where the rows of baseline JPEGs begin, so that
                crops are decoded faster from the second epoch on; 0 remembers nothing. Default 64 MiB, enough for some
                240,000 images of 500 × 375 pixels. The loaders of a process share them; the largest number counts.
            held_bytes: Bytes of batches that a caller may keep beyond ``slots``, as ``list(loader)`` does; default
                1 GiB. If the caller has waited for a batch for a second while it holds all slots, slots are added,
                with one warning in the log, and freed when batches are dropped. If the limit leaves no room for
                another batch, or the batches are on a device, the wait ends with ConfigError. 0: none are added.
            deadline: Seconds until waiting for a batch becomes an error that states the reason; default 300.

        Raises:
            ConfigError: A number is out of range.

        Example:
            >>> pipeline = fs.Dataset(images).batch(4).options(threads=2, slots=3)
            >>> with pipeline.loader() as loader:
            ...     batch = next(iter(loader))
            ...     loader.stats()["slots"]
            3
        """
        options = {
            "threads": whole_or_none("threads", threads, 1),
            "slots": whole_or_none("slots", slots, 2),  # one is read while one is written
            "budget_bytes": whole_or_none("budget_bytes", budget_bytes),
            "prefetch_bytes": whole_or_none("prefetch_bytes", prefetch_bytes),
            "decoder_memory": whole_or_none("decoder_memory", decoder_memory),
            "row_index_bytes": whole_or_none("row_index_bytes", row_index_bytes),
            "held_bytes": whole_or_none("held_bytes", held_bytes),
            "deadline": None if deadline is None else seconds("deadline", deadline),
        }
        given = {name: value for name, value in options.items() if value is not None}
        return self._with("options", **given) if given else self

    @overload
    def loader(
        self: Pipeline[FromOutput],
        rank: int = 0,
        world_size: int = 1,
        *,
        output: Literal["batch"] = "batch",
        **options: Unpack[OptionsWithoutOutput],
    ) -> Loader[Batch]: ...

    @overload
    def loader(
        self: Pipeline[FromOutput],
        rank: int = 0,
        world_size: int = 1,
        *,
        output: Literal["numpy", "torch"],
        **options: Unpack[OptionsWithoutOutput],
    ) -> Loader[dict[str, Any]]: ...

    @overload
    def loader(
        self: Pipeline[FromOutput], rank: int = 0, world_size: int = 1, **options: Unpack[LoaderOptions]
    ) -> Loader[Any]: ...

    @overload
    def loader(
        self: Pipeline[T], rank: int = 0, world_size: int = 1, **options: Unpack[LoaderOptions]
    ) -> Loader[T]: ...

    @takes_loader_options()
    def loader(self, rank: int = 0, world_size: int = 1, **options: Unpack[LoaderOptions]) -> Loader[Any]:
        """Makes the loader of one rank. ``feedstock.torch.loader`` takes rank and world size from torch.

        Args:
            rank: This process's rank in the data-parallel group; default 0.
            world_size: Ranks in that group; default 1.
            **options: See ``LoaderOptions``.

        Raises:
            ConfigError: The pipeline or an option is not valid. Nothing runs then.
            TypeError: An option is unknown.

        Example:
            >>> pipeline = fs.Dataset(images).map("image", fs.decode_image(), fs.resize((32, 32))).batch(2)
            >>> loader = pipeline.loader(rank=1, world_size=2, output="numpy")
            >>> batch = next(iter(loader))
            >>> batch["image"].shape, batch["sample_ids"].dtype, len(loader)
            ((2, 32, 32, 3), dtype('uint64'), 2)
        """
        return Loader(self, rank, world_size, **options)

    def show(self, samples: int = 16, *, epoch: int = 0) -> Preview:
        """Runs the first samples of an epoch through the ops, and shows their images as the model gets them.

        The images are those of the first batches of a loader of one rank. Stored images without a map are shown, too.
        Functions of ``map_rows`` run; those of ``map_python`` do not. A sample that cannot be used is shown with the
        reason. With ``bucket_by``, they are the first samples of the order in batches of one.

        Args:
            samples: Samples to show, at least 1; default 16.
            epoch: The epoch; default 0.

        Returns:
            A page for notebooks; ``save(path)`` writes it to a file.

        Raises:
            ConfigError: No column has images.

        Example:
            >>> pipeline = fs.Dataset(images).map("image", fs.decode_image(), fs.random_resized_crop(32))
            >>> len(pipeline.shuffle(seed=7).show(4))
            4
        """
        samples, epoch = whole("samples", samples, 1), whole("epoch", epoch)
        alone = self._with("batch", sizes=batch_sizes(global_batch_size=1), tail="drop")
        alone = alone._with("on_error", policy="skip", max_fraction=1.0)
        described = alone.describe()
        layouts = image_layouts(described)
        names = {one.name: self.dataset.class_names(one.name) for one in described.columns}
        functions = tuple(one for one in self._functions if isinstance(one, RowFunction))
        loader: Loader[Any] = Loader(alone._changed(alone._native, alone._steps, functions), output="numpy")
        with loader:
            loader.set_epoch(epoch)
            return preview(described.uri, layouts, names, loader, samples)

    def spec(self) -> str:
        """Returns the recipe as JSON: which samples, ops and order.

        For clients of Arrow Flight, which send it to a worker with ``DoAction("describe", …)`` and then read its lanes.
        Functions of ``map_python`` and ``map_rows`` are not part of it.
        """
        return self._native.spec()

    @property
    def _yields_rows(self) -> bool:
        """Whether loaders yield the results of ``map_rows``, in the form that their option ``output`` states."""
        return bool(self._functions) and isinstance(self._functions[-1], RowFunction)

    @property
    def _batch(self) -> dict[str, Any]:
        """What ``batch`` was given last, except for the rows."""
        sizes, tail = batch_sizes(), "drop"
        for method, arguments in self._steps:
            if method == "batch":
                sizes, tail = arguments["sizes"], arguments["tail"]
        return {**{name: sizes[name] for name in ("total", "global_total", "max_rows")}, "tail": tail}

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _rebuild, (self.dataset, self._steps, self._functions)

    def __repr__(self) -> str:
        steps = [f".{method}({_shown(arguments)})" for method, arguments in self._steps]
        steps += [f".{function_text(one)}" for one in self._functions[len(self.dataset._functions) :]]
        return f"Pipeline({self.dataset!r}){''.join(steps)}"


def _shown(arguments: Mapping[str, Any]) -> str:
    flat = {**arguments.get("sizes", {}), **arguments}
    return ", ".join(
        f"{name}={value!r}" for name, value in flat.items() if value is not None and name != "sizes"
    )


def _rebuild(dataset: Dataset, steps: Iterable[tuple[str, Any]], functions: Functions) -> Pipeline:
    pipeline = Pipeline(dataset)
    for method, arguments in steps:
        named = named_arguments(method, arguments) if isinstance(arguments, tuple) else arguments
        pipeline = pipeline._with(method, **named)
    return pipeline._changed(pipeline._native, pipeline._steps, functions)
