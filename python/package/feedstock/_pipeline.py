"""What is done to which samples, in which order and batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from feedstock._check import batch_sizes, number, one_of, real, seconds, text, whole, whole_or_none
from feedstock._joint import JointColumn, joint_steps
from feedstock._loader import Loader
from feedstock._nulls import NullsOf, plain_nulls
from feedstock._options import LoaderOptions, takes_loader_options
from feedstock._pickles import named_arguments
from feedstock._rows.function import RowFunction, row_function
from feedstock._rows.spec import TensorSpec
from feedstock._simulation import Simulation, simulation_arguments
from feedstock.errors import ConfigError
from feedstock.ops import Op
from feedstock.ops._op import chain_json

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from feedstock import _feedstock
    from feedstock._dataset import Dataset

#: A method of the native pipeline, and its arguments.
_Step = tuple[str, dict[str, Any]]
#: Functions of ``map_rows``, then those of ``map_python`` with their threads.
_Functions = tuple[RowFunction | tuple[Callable[[Any], Any], int | None], ...]


class Pipeline:
    """A data set, the ops on its columns, an order, and batches. Made by ``Dataset.map``, ``.shuffle`` or ``.batch``.

    Immutable: every method returns a new pipeline. Pipelines that were made from one another share threads. Picklable
    if its Python functions are: the pickle is a recipe, and unpickling opens the data set again.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._native = dataset._native.pipeline()
        self._steps: tuple[_Step, ...] = ()
        self._functions: _Functions = ()

    def _with(self, method: str, **arguments: Any) -> Pipeline:
        native = getattr(self._native, method)(**arguments)
        return self._changed(native, (*self._steps, (method, arguments)), self._functions)

    def _changed(
        self, native: _feedstock.Pipeline, steps: tuple[_Step, ...], functions: _Functions
    ) -> Pipeline:
        pipeline = Pipeline.__new__(Pipeline)
        pipeline.dataset, pipeline._native = self.dataset, native
        pipeline._steps, pipeline._functions = steps, functions
        return pipeline

    def map(
        self,
        column: str | Mapping[str, JointColumn],
        *ops: Op | Iterable[Op],
        output: str | None = None,
        pad_value: float = 0.0,
        key: str | None = None,
    ) -> Pipeline:
        """Runs the encoded bytes or text of ``column`` through ops, sample by sample, on the pipeline's threads.

        One column may be mapped several times, to different outputs. Unmapped columns are passed on unchanged.

        A dict maps several columns by the same ops with the same random numbers, such as an image and its mask:
        ``map({"image": fs.image(), "mask": fs.mask()}, fs.random_resized_crop(224), fs.horizontal_flip())``. Each
        column is read as its value states; boxes and keypoints follow the first image. A joint map has no ``output``
        and no ``pad_value``.

        Args:
            column: A column of encoded images, audio or text; or a dict of ``fs.image``, ``fs.mask``, ``fs.boxes`` and
                ``fs.keypoints`` by column.
            *ops: The ops, in order, such as ``fs.decode_image()``; lists of ops are joined.
            output: The name of the resulting tensor [rows, …]; default: ``column``. It must not be the name of another
                column that no map reads.
            pad_value: Variable-length rows (waveforms, features, tokens) are padded with this value to the longest of
                the batch; default 0. The column ``<output>_length`` (int64 [rows]) has their lengths.
            key: Names the random numbers of this map. Maps with equal keys draw the same numbers for a sample, whatever
                columns they read: the same crop of an image and of its mask. Default: the first map of a column draws
                as the only one would; each further map draws by the name of its output, so that two random crops of
                one image differ.

        Raises:
            ConfigError: An argument is not valid. Names of columns are checked when a loader is made.

        Example:
            >>> chain = [fs.decode_image(), fs.random_resized_crop(24), fs.to_chw()]
            >>> pipeline = fs.Dataset(images).map("image", chain, output="pixels").batch(2)
            >>> batch = next(iter(pipeline.loader()))
            >>> batch["pixels"].shape, batch["pixels"].dtype
            ((2, 3, 24, 24), 'uint8')
        """
        if key is not None and (not isinstance(key, str) or not key):
            raise ConfigError(f"key must be a non-empty string; got {key!r}")
        if isinstance(column, Mapping):
            if output is not None or pad_value != 0.0:
                raise ConfigError(
                    "a joint map takes no output and no pad_value; its results have the columns' names"
                )
            return self._map_jointly(column, ops, key)
        return self._with(
            "map",
            column=text("column", column),
            output=column if output is None else text("output", output),
            ops=chain_json(ops),
            pad_value=number("pad_value", pad_value),
            key=key,
        )

    def _map_jointly(
        self, columns: Mapping[str, JointColumn], ops: Iterable[Op | Iterable[Op]], key: str | None
    ) -> Pipeline:
        mapped = {arguments["column"] for method, arguments in self._steps if method in ("map", "annotate")}
        if key is None and not mapped.isdisjoint(columns):
            key = "+".join(
                columns
            )  # a column's first map draws without a key, every further one by its output
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
        executor: Literal["process", "thread"] = "process",
        num_workers: int | None = None,
        timeout: float | None = None,
        version: str = "",
    ) -> Pipeline:
        """Runs ``fn(row, rng)`` on every sample, in processes of this machine, after all maps.

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
                threads of this process, for functions that release the GIL.
            num_workers: Processes or threads; default: the CPU threads of the pipeline (see ``options``).
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

    def map_python(self, fn: Callable[[Any], Any], *, num_threads: int | None = None) -> Pipeline:
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
        return self._changed(self._native, self._steps, (*self._functions, (fn, num_threads)))

    def shuffle(
        self,
        seed: int = 0,
        *,
        window: int | None = None,
        lanes: int | None = None,
        full: bool = False,
        shuffle_bytes: int | None = None,
        piece: int | None = None,
    ) -> Pipeline:
        """Shuffles every epoch anew, as a pure function of (data set, seed, epoch).

        What is permuted depends on how the data set is stored, so that the shuffle is as good as reads allow:

        - folders and manifests, and on local disks tars, Arrow IPC and Parquet with a page for each sample: every
          sample (a full shuffle);
        - these on object storage, except folders: pieces of about 256 KiB, then samples inside windows of 256 MiB;
        - Parquet with pages of a few samples, without a filter: whole pages, then samples inside windows of 256 MiB,
          or of 512 MiB if a page has more than 256 KiB;
        - other Parquet and compressed Arrow IPC: blocks, then samples inside windows of 512 MiB.

        With ``window``, it is blocks for all of them, unless ``piece`` is set. A loaded state keeps the order that it
        was saved with.

        Args:
            seed: At least 0; default 0. Also seeds the ops' random numbers, unless ``seed()`` sets another seed.
            window: Samples in a window, over all ranks; default: by ``shuffle_bytes``.
            shuffle_bytes: Encoded bytes of the samples in a window, over all ranks; default 256 MiB for pieces, 512 MiB
                for blocks and large pages. Larger windows mix better and take more memory.
            piece: Consecutive samples that stay together until they are shuffled inside a window, at least 1. Smaller
                pieces mix better and take more requests.
            lanes: Strands of the order that ranks divide among themselves; default: up to 64. For large jobs, set a
                multiple of the largest planned world size.
            full: ``True`` draws every sample independently, for storage with fast random reads; default ``False``.
        """
        windowed = {"window": window, "shuffle_bytes": shuffle_bytes, "piece": piece}
        given = [name for name, value in windowed.items() if value is not None]
        if full and given:
            raise ConfigError(f"{given[0]} has no effect with full=True; leave out one of them")
        if window is not None and shuffle_bytes is not None:
            raise ConfigError("window and shuffle_bytes both set the size of a window; leave out one of them")
        return self._with(
            "shuffle",
            kind="full" if full else "window",
            seed=whole("seed", seed),
            window=whole_or_none("window", window, 1),
            lanes=whole_or_none("lanes", lanes, 1),
            shuffle_bytes=whole_or_none("shuffle_bytes", shuffle_bytes, 1),
            piece=whole_or_none("piece", piece, 1),
        )

    def seed(self, seed: int) -> Pipeline:
        """Seeds the ops' random numbers; default: the seed of ``shuffle``."""
        return self._with("seed", seed=whole("seed", seed))

    def bucket_by(self, column: str, *, window: int | None = None) -> Pipeline:
        """Puts samples of similar length into one batch.

        Inside each window, samples are sorted by length and cut into global batches; then the batches are shuffled. At
        a step, all ranks get the same bucket. All ranks take the same number of steps.

        Args:
            column: A numeric column of the catalog, such as ``"duration"``.
            window: Samples in a window; default: that of ``shuffle``.
        """
        return self._with(
            "bucket_by", column=text("column", column), window=whole_or_none("window", window, 1)
        )

    def lengths_from(self, column: str) -> Pipeline:
        """Sets the numeric column of lengths for batches that a total bounds, if they are not bucketed."""
        return self._with("lengths_from", column=text("column", column))

    def batch(
        self,
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        total: float | None = None,
        global_total: float | None = None,
        max_rows: int | None = None,
        tail: Literal["drop", "pad"] = "drop",
    ) -> Pipeline:
        """Sets the batch size, by exactly one of the first four arguments.

        Args:
            batch_size: Rows for each rank, at least 1.
            global_batch_size: Rows over all ranks; the ranks' shares differ by at most one row.
            total: Bounds rows × longest length for each rank, in the unit of the column of lengths (seconds, frames,
                tokens). See ``bucket_by`` and ``lengths_from``.
            global_total: The same bound over all ranks: the same global batches for any world size.
            max_rows: The most rows that a total may collect; default 1,024 for each rank, 65,536 over all.
            tail: The epoch's last, incomplete global batch. ``"drop"`` (default) leaves it out. ``"pad"`` fills it with
                samples from the epoch's start, marked False in ``batch.valid``, so that evaluation counts each sample
                once.

        Raises:
            ConfigError: None or several of the sizes are given, or one is not valid.

        Example:
            >>> data = fs.Dataset(images)  # 8 samples
            >>> [batch.num_rows for batch in data.batch(3).loader()]
            [3, 3]
            >>> [int(batch.valid.sum()) for batch in data.batch(3, tail="pad").loader()]
            [3, 3, 2]
        """
        one_of("tail", tail, ("drop", "pad"))
        sizes = batch_sizes(
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            total=total,
            global_total=global_total,
            max_rows=max_rows,
        )
        return self._with("batch", sizes=sizes, tail=tail)

    def on_error(self, policy: Literal["raise", "skip"], *, max_fraction: float = 0.01) -> Pipeline:
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

    def nulls(self, nulls: NullsOf | Mapping[str, NullsOf]) -> Pipeline:
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

    def epochs(self, epochs: int) -> Pipeline:
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
        deadline: float | None = None,
    ) -> Pipeline:
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
            prefetch_bytes: Bytes that each loader fetches for batches that have no slot yet; default 128 MiB. The next
                two batches are fetched in any case, and no more than 64. Of files on a local disk, no more than these
                bytes are kept for the next epoch, since the operating system caches files.
            decoder_memory: Bytes of working memory of each CPU thread for one sample: the decoded image or waveform,
                and what the decoder and ops need in addition. Default 64 MiB, a 22-megapixel RGB image. A sample that
                needs more borrows the rest from ``budget_bytes`` until it is decoded. One that needs more than
                ``decoder_memory`` and half of ``budget_bytes`` (with ``local=``, a quarter) is a bad sample: see
                ``on_error``.
            row_index_bytes: Bytes that the process keeps to remember where the rows of baseline JPEGs begin, so that
                crops are decoded faster from the second epoch on; 0 remembers nothing. Default 64 MiB, enough for some
                240,000 images of 500 × 375 pixels. The loaders of a process share them; the largest number counts.
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
            "deadline": None if deadline is None else seconds("deadline", deadline),
        }
        given = {name: value for name, value in options.items() if value is not None}
        return self._with("options", **given) if given else self

    @takes_loader_options()
    def loader(self, rank: int = 0, world_size: int = 1, **options: Unpack[LoaderOptions]) -> Loader:
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

    def shuffle_quality(
        self, world_size: int = 1, *, labels: str | None = None, epoch: int = 0
    ) -> dict[str, Any]:
        """Measures how well the order shuffles, compared with a full shuffle, and what an epoch reads.

        Up to 64 steps of the real order are sampled, so this takes seconds for any number of samples. Only the labels
        of sampled samples are read.

        Args:
            world_size: Ranks; default 1.
            labels: A column of texts or integers. Default: ``label``, ``class``, ``labels`` or a column with class
                names, if there is one; without one, nothing is stated about labels.
            epoch: The epoch; default 0.

        Returns:
            ``why_blocks`` (why the default permutes blocks of this data set, and what changes that; else None),
            ``order``, ``full_shuffle``, and ``half_window`` and ``twice_window`` (None without a window). Each has:

            - ``global_batch`` and ``rank_batch``: ``labels`` (different labels in a batch), ``entropy_bits``, and
              ``entropy_ratio`` to a full shuffle's batches of the same size. None without labels.
            - ``same_shard_pairs``: the share of the pairs of samples in a global batch that come from one shard.
            - ``displacement``: mean |position − rank in the catalog| ÷ samples; 1/3 for a full shuffle.
            - ``reads``: ``rank_requests``, ``rank_bytes``, ``requests``, ``bytes`` of an epoch without caches, and
              ``readers``, the mean number of ranks that read a block or a piece.
            - ``shuffle`` (in words), ``window``, ``window_bytes``, ``lanes``.

            Also ``label_column``, ``sampled_steps``, ``labelled_steps``, ``global_batch``, ``epoch``, ``world_size``.
            ``feedstock plan URI --summary --json`` prints the same.

        Raises:
            ConfigError: The column or a number is not valid, batches do not fit the data set, or a global batch has
                more than 262,144 samples.

        Example:
            >>> quality = fs.Dataset(images).shuffle(seed=7).batch(global_batch_size=4).shuffle_quality(world_size=2)
            >>> quality["sampled_steps"], quality["label_column"], quality["order"]["reads"]["readers"]
            (2, 'label', 2.0)
        """
        world_size = whole("world_size", world_size, 1)
        report = self._native.shuffle_quality(world_size, whole("epoch", epoch), labels)
        return dict(json.loads(report))

    def simulate(
        self,
        world_size: int = 1,
        *,
        threads: int | None = None,
        decode_ms: float = 3.0,
        step_ms: float = 0.0,
        store: str | None = None,
        network_gbit: float | None = None,
        concurrency: int = 128,
        workers: int | None = None,
        worker_threads: int = 16,
        price_per_1000_requests: float = 0.0004,
        price_per_gb: float = 0.0,
        epoch: int = 0,
    ) -> Simulation:
        """Forecasts rate, waiting, requests, bytes, memory and costs of a job, without reading its data.

        The order, the prefetching and the memory budget are those of a real run. The store, the CPU threads and the
        trainer are models under a virtual clock. Workers and devices of this pipeline do not matter.

        Args:
            world_size: Ranks; default 1.
            threads: CPU threads of each rank. Default: those of ``options(threads=…)``, else of this machine.
            decode_ms: Milliseconds that a thread takes for a sample; default 3, a photograph.
            step_ms: Milliseconds that the trainer takes for a step; default 0.
            store: How the store answers: ``s3`` (27 ms), ``express`` (5 ms), ``far`` (150 ms) or ``local``. Default:
                ``local`` for local data, else ``s3``.
            network_gbit: Gigabits per second of each rank's network; default no limit.
            concurrency: Requests of a rank or worker under way at once; default 128.
            workers: Workers that decode for all ranks. Default: none, the ranks decode.
            worker_threads: CPU threads of each worker; default 16.
            price_per_1000_requests: Dollars for 1,000 GET requests; default 0.0004.
            price_per_gb: Dollars for 10⁹ bytes read; default 0.
            epoch: The epoch; default 0.

        Returns:
            ``forecast`` with ``samples_per_s`` (of all ranks), ``waiting_share``, ``first_batch_s``, ``requests``,
            ``bytes``, ``memory_bytes``, ``dollars`` and ``bottleneck`` among others; ``alternatives``, each a
            ``change`` of one setting and its ``forecast``; ``steps``, ``samples``, ``simulated_steps``,
            ``simulated_ranks``, ``epoch``, ``world_size``. ``feedstock simulate URI --json`` prints the same.

        Raises:
            ConfigError: A number or the store is not valid, or batches do not fit the data set or the budget.

        Example:
            >>> pipeline = fs.Dataset(images).shuffle(seed=7).batch(global_batch_size=4)
            >>> pipeline.simulate(store="far")["forecast"]["first_batch_s"] > 0.05
            True
        """
        given = simulation_arguments(
            world_size=world_size,
            epoch=epoch,
            threads=threads,
            store=store,
            network_gbit=network_gbit,
            concurrency=concurrency,
            workers=workers,
            worker_threads=worker_threads,
            decode_ms=decode_ms,
            step_ms=step_ms,
            price_per_1000_requests=price_per_1000_requests,
            price_per_gb=price_per_gb,
        )
        return cast("Simulation", json.loads(self._native.simulate(given)))

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
        steps += [
            f".{one}" if isinstance(one, RowFunction) else f".map_python({one[0]!r})"
            for one in self._functions
        ]
        return f"Pipeline({self.dataset!r}){''.join(steps)}"


def _shown(arguments: Mapping[str, Any]) -> str:
    flat = {**arguments.get("sizes", {}), **arguments}
    return ", ".join(
        f"{name}={value!r}" for name, value in flat.items() if value is not None and name != "sizes"
    )


def _rebuild(dataset: Dataset, steps: Iterable[tuple[str, Any]], functions: _Functions) -> Pipeline:
    pipeline = Pipeline(dataset)
    for method, arguments in steps:
        named = named_arguments(method, arguments) if isinstance(arguments, tuple) else arguments
        pipeline = pipeline._with(method, **named)
    return pipeline._changed(pipeline._native, pipeline._steps, functions)
