"""What is done to which samples, in which order and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, cast

from feedstock._check import one_of, whole, whole_or_none
from feedstock.errors import ConfigError
from feedstock.ops import Op
from feedstock.ops._op import chain_json

if TYPE_CHECKING:
    from feedstock import _feedstock
    from feedstock._dataset import Dataset
    from feedstock._loader import Loader
    from feedstock._workers import Workers
    from feedstock.finish import Finish

_Step = tuple[str, tuple[Any, ...]]

#: What nulls of a column become.
NullsOf = Literal["list", "mask"] | bool | int | float


class Pipeline:
    """A data set, the ops on its columns, an order, and batches. Made by ``Dataset.map``, ``.shuffle`` or ``.batch``.

    Immutable: every method returns a new pipeline; those made from one share its threads. Picklable, if its Python
    functions are: it is a recipe, and unpickling opens the data set again.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._native = dataset._native.pipeline()
        self._steps: tuple[_Step, ...] = ()
        self._functions: tuple[tuple[Callable[[Any], Any], int | None], ...] = ()

    def _with(self, method: str, *arguments: Any) -> Pipeline:
        return self._changed(
            getattr(self._native, method)(*arguments), (*self._steps, (method, arguments)), self._functions
        )

    def _changed(
        self,
        native: _feedstock.Pipeline,
        steps: tuple[_Step, ...],
        functions: tuple[tuple[Callable[[Any], Any], int | None], ...],
    ) -> Pipeline:
        pipeline = Pipeline.__new__(Pipeline)
        pipeline.dataset, pipeline._native = self.dataset, native
        pipeline._steps, pipeline._functions = steps, functions
        return pipeline

    def map(
        self,
        column: str,
        *ops: Op | Iterable[Op],
        output: str | None = None,
        pad_value: float = 0.0,
        key: str | None = None,
    ) -> Pipeline:
        """Runs each sample's encoded bytes or text in ``column`` through ``ops``, on the pipeline's threads.

        The result is the batch's tensor ``output`` (default: the column's own name); one column may be mapped several
        times. Rows of their own lengths (waveforms, features, tokens) are padded with ``pad_value`` to the longest of
        the batch, and their lengths stand in the column ``<output>_length``. Columns without a map ride along.

        The first map of a column draws its randomness as if it were the only one. Every further map of that column
        draws by the name of its output, so that two random crops of one image differ. ``key`` overrides both: maps with
        equal keys draw the same for a sample, whatever columns they read (the same crop of an image and of its mask).
        """
        if key is not None and (not isinstance(key, str) or not key):
            raise ConfigError(f"key must be a non-empty string; got {key!r}")
        return self._with("map", column, output or column, chain_json(ops), float(pad_value), key)

    def map_python(self, fn: Callable[[Any], Any], *, num_threads: int | None = None) -> Pipeline:
        """Runs ``fn(batch)`` on every batch, in this process, on a pool of ``num_threads`` threads (default 1), order
        kept; the loader yields what it returns. With ``output="numpy"`` or ``"torch"`` it gets that dict. On a GPU it
        works on the stream that is torch's current one where the loader is iterated, as what it returns is used there.

        Every function has a separate pool, and a pool begins with its batches in order. With one thread, ``fn`` runs
        on one batch at a time, in order, whatever other functions asked for. With several functions, each gets the
        result of the one before it.

        The batches under way, in addition to the one that you have, are the sum of all functions' threads, plus one
        result that waits. Each holds a slot, so the pipeline gets that many more. Functions that do not let go of the
        GIL run one at a time whatever the number of threads: prefer ops.
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
    ) -> Pipeline:
        """Shuffles anew in every epoch, as a pure function of (data set, seed, epoch).

        Blocks are permuted and samples shuffled inside windows of ``window`` samples (default: what fits 512 MiB of
        encoded bytes). ``full=True`` draws every sample on its own instead, for storage with cheap random reads.
        ``lanes``: strands of the order that ranks share out, default up to 64; large jobs set a multiple of the largest
        world size they plan. The seed is also that of the ops' randomness, unless ``seed()`` sets another.
        """
        return self._with(
            "shuffle",
            "full" if full else "window",
            whole("seed", seed),
            whole_or_none("window", window, 1),
            whole_or_none("lanes", lanes, 1),
        )

    def seed(self, seed: int) -> Pipeline:
        """Seeds the ops' randomness; default the shuffle's seed."""
        return self._with("seed", whole("seed", seed))

    def bucket_by(self, column: str, *, window: int | None = None) -> Pipeline:
        """Puts samples of like length into one batch, by the numeric ``column`` of the catalog (``"duration"``): inside
        windows of ``window`` samples (default the shuffle's) they are sorted, cut into global batches, and the batches
        shuffled. All ranks get the same bucket at a step, and the same number of steps."""
        return self._with("bucket_by", column, whole_or_none("window", window, 1))

    def lengths_from(self, column: str) -> Pipeline:
        """The numeric column of lengths that batches of a total go by, where they are not bucketed."""
        return self._with("lengths_from", column)

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
        """Sets the batch size; one of:

        Args:
            batch_size: Rows for each rank.
            global_batch_size: Rows over all ranks; their shares differ by at most one.
            total: As many rows for each rank as keep rows × longest length at or below it, in the unit of the lengths'
                column (seconds, frames, tokens); see ``bucket_by`` and ``lengths_from``.
            global_total: Likewise over all ranks: the same global batches for any world size.
            max_rows: Rows that a total may gather; default 1,024 for each rank, 65,536 over all.
            tail: ``"drop"`` leaves out the epoch's last, incomplete global batch; ``"pad"`` fills it with samples from
                the epoch's start, marked False in ``batch.valid``, so that evaluation counts each sample once.
        """
        one_of("tail", tail, ("drop", "pad"))
        return self._with(
            "batch",
            whole_or_none("batch_size", batch_size, 1),
            whole_or_none("global_batch_size", global_batch_size, 1),
            total,
            global_total,
            whole_or_none("max_rows", max_rows, 1),
            tail,
        )

    def on_error(self, policy: Literal["raise", "skip"], *, max_fraction: float = 0.01) -> Pipeline:
        """What becomes of samples that cannot be decoded. ``"raise"`` (the default) stops with the sample's name;
        ``"skip"`` fills the row with the batch's nearest good one, marks it False in ``batch.valid``, lists it in
        ``loader.skip_report()``, and stops past ``max_fraction`` of an epoch's samples. Ranks stay in step."""
        one_of("on_error", policy, ("raise", "skip"))
        return self._with("on_error", policy, max_fraction)

    def nulls(self, nulls: NullsOf | Mapping[str, NullsOf]) -> Pipeline:
        """What becomes of missing values in columns of numbers or flags: one form in every batch.

        Args:
            nulls: For all columns, or by column as in ``{"label": -1}``. Settings by column override one for all.

                - ``"list"``: the column is a Python list with ``None`` in every batch (in Arrow, a column with nulls).
                - a value: a tensor in which it stands for nulls. It must fit the column's type: ``True`` or ``False``
                  for flags, an integer in range for integers, a number for floats.
                - ``"mask"``: a tensor with 0 for nulls, and a second one of flags and the same shape,
                  ``"<column>_mask"``: ``True`` where a value is present. For all columns, it adds flags to those
                  that may have nulls by their schema.

        Without a setting, a column is a list in every batch if statistics prove nulls: the null counts of Parquet
        footers, tables in memory, or a part of a mix or a concatenation that lacks the column. If a filter keeps only
        some of a data set's samples, its counts prove nothing. Every other column is a tensor in every batch, and a
        sample with a null in it is a bad sample: see ``on_error``.

        Wrong names and values raise ``ConfigError`` when the loader is made.
        """
        changed = self
        settings = nulls.items() if isinstance(nulls, Mapping) else [(None, nulls)]
        for column, to in settings:
            changed = changed._with("nulls", column, _plain(to))
        return changed

    def epochs(self, epochs: int) -> Pipeline:
        """Ends after so many epochs, so that nothing is prefetched beyond them; default: goes on."""
        return self._with("epochs", whole("epochs", epochs, 1))

    def options(
        self,
        *,
        threads: int | None = None,
        slots: int | None = None,
        budget_bytes: int | None = None,
        decoder_memory: int | None = None,
        deadline: float | None = None,
    ) -> Pipeline:
        """Resources.

        A loader's memory grows by at most ``budget_bytes`` + slots + 200 MB + ``threads`` × ``decoder_memory``. With
        the defaults and 8 threads: 1 GiB + 4 batches + 200 MB + 512 MiB.

        Args:
            threads: CPU threads that work for this pipeline's loaders at once, at most; they belong to the one pool of
                the process. Default: the CPUs that Ray assigned, if more than 1; else the CPUs that the process may use
                (affinity, cgroup quota), divided by ``LOCAL_WORLD_SIZE``.
            slots: Batches in memory for each loader, at least 2; default 4: 2 ready, 1 being written, 1 with you.
            budget_bytes: Bytes of fetched blocks in memory for each loader, decompressed (images and audio stay
                encoded); default 1 GiB, twice the default shuffle window.
            decoder_memory: Bytes of working memory that each CPU thread may take for one sample: the decoded image or
                waveform, and what the decoder and ops keep beside it. Default 64 MiB, a 22-megapixel RGB image. A
                sample that needs more borrows the rest from ``budget_bytes`` until it is decoded. One that needs more
                than ``decoder_memory`` and half of ``budget_bytes`` is a bad sample, subject to ``on_error``.
            deadline: Seconds that a batch is waited for before an error says what it waits for; default 300.
        """
        options = (
            whole_or_none("threads", threads, 1),
            whole_or_none("slots", slots, 2),  # one is read while one is written
            whole_or_none("budget_bytes", budget_bytes),
            whole_or_none("decoder_memory", decoder_memory),
            deadline,
        )
        if all(value is None for value in options):
            return self
        return self._with("options", *options)

    def loader(
        self,
        rank: int = 0,
        world_size: int = 1,
        *,
        workers: str | Workers | _feedstock.Members | None = None,
        output: Literal["batch", "numpy", "torch"] = "batch",
        restart: bool = False,
        device: Any = None,
        finish: Mapping[str, Finish] | None = None,
        depth: int = 2,
        static: bool = False,
        nvjpeg: float = 0.0,
    ) -> Loader:
        """One rank's batches. ``feedstock.torch.loader`` takes rank and world size from torch.

        Args:
            rank: This process's place in the data-parallel group.
            world_size: Ranks in that group.
            workers: Who makes the rows; default this process's own threads. ``"host:port,…"``, ``"dns:name:port"`` or
                ``Workers`` with a token and certificates; ``"ray"`` for the fleet of this Ray job. The batches are the
                same bytes.
            output: What is yielded: ``Batch``, or a dict of numpy arrays or torch tensors (views) and lists, with
                ``"sample_ids"`` and ``"valid"`` added.
            restart: Every ``iter()`` begins an epoch at its start, as evaluation wants it; default: an unfinished
                epoch goes on where it was left.
            device: Where batches arrive: ``"cuda:0"``, a torch.device, or ``"cuda"`` for this process's: torch's
                current one where it was set, else that of torchrun's LOCAL_RANK; default host memory. Numeric columns
                are tensors on that device then, copied from page-locked memory while the model computes. Where the
                machine has no CUDA, they stay in host memory, and a warning says so once. ``"cpu"`` is host memory
                without a warning.
            finish: By mapped column, what is done to it on the device: ``{"image": fs.finish_pictures("bfloat16")}``.
            depth: Batches on the device ahead of the one that you have.
            static: Every batch has the same addresses for as long as the loader lives, as CUDA graphs need them: the
                next batch overwrites the one before it, in the order of torch's current stream. Batches must be of one
                shape.
            nvjpeg: The share of JPEGs that NVIDIA's nvJPEG decodes on the device, 0.0 to 1.0, by the chip's own engine
                where it has one; the CPU decodes the others. For chains of ``decode_image``, then
                ``random_resized_crop``, or ``resize`` and a crop, then at most ``horizontal_flip``. Which pictures is
                a pure function of seed, epoch and sample; progressive and other unusual JPEGs stay with the CPU.
                Pixels differ from the CPU's by two levels at most on an H100. Where there is no CUDA, the CPU decodes
                all.

        Raises:
            ConfigError: Anything about the pipeline that does not fit, before anything runs.
        """
        from feedstock._loader import Loader

        options: dict[str, Any] = {"output": output, "restart": restart}
        options |= {"device": device, "finish": finish, "depth": depth, "static": static}
        options["nvjpeg"] = nvjpeg
        if workers == "ray":
            from feedstock.ray import find

            fleet = find()
            serving = cast("_feedstock.Members", fleet.members())
            loader = Loader(self, rank, world_size, workers=serving, **options)
            fleet.watch(loader)
            return loader
        return Loader(self, rank, world_size, workers=workers, **options)

    def spec(self) -> str:
        """What is done to which samples, in which order, as JSON: for clients of Arrow Flight, who tell it to a worker
        with ``DoAction("describe", …)`` and then read its lanes. Python functions are not part of it."""
        return self._native.spec()

    @property
    def _has_threads(self) -> bool:
        """Did ``options`` name a number of threads?"""
        return any(method == "options" and arguments[0] is not None for method, arguments in self._steps)

    @property
    def _slots(self) -> int:
        given = [arguments[1] for method, arguments in self._steps if method == "options" and arguments[1]]
        return given[-1] if given else 4

    @property
    def _batch(self) -> dict[str, Any]:
        """What ``batch`` was given last, but for the rows."""
        given = [arguments for method, arguments in self._steps if method == "batch"]
        total, global_total, max_rows, tail = given[-1][2:] if given else (None, None, None, "drop")
        return {"total": total, "global_total": global_total, "max_rows": max_rows, "tail": tail}

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _rebuild, (self.dataset, self._steps, self._functions)

    def __repr__(self) -> str:
        steps = [f".{method}({', '.join(map(repr, arguments))})" for method, arguments in self._steps]
        steps += [f".map_python({function!r})" for function, _ in self._functions]
        return f"Pipeline({self.dataset!r}){''.join(steps)}"


def _plain(nulls: Any) -> NullsOf:
    """A setting of ``nulls`` without numpy's types."""
    if isinstance(nulls, str):
        one_of("nulls", nulls, ("list", "mask"))
        return cast("NullsOf", nulls)
    if isinstance(nulls, bool) or type(nulls).__name__ in ("bool_", "bool"):
        return bool(nulls)
    if isinstance(nulls, Integral):
        return int(nulls)
    if isinstance(nulls, Real):
        return float(nulls)
    raise ConfigError(f"nulls must be 'list', 'mask' or a value; got {nulls!r}")


def _rebuild(dataset: Dataset, steps: tuple[_Step, ...], functions: Any) -> Pipeline:
    pipeline = Pipeline(dataset)
    for method, arguments in steps:
        pipeline = pipeline._with(method, *arguments)
    return pipeline._changed(pipeline._native, pipeline._steps, functions)
