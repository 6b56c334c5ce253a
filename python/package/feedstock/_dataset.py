"""Which samples: opening, filtering, mixing and concatenating data sets."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from feedstock import _feedstock
from feedstock._check import one_of, whole, whole_or_none
from feedstock.errors import ConfigError
from feedstock.ops import Op

if TYPE_CHECKING:
    from feedstock._pipeline import Pipeline

Progress = Callable[[str, int, "int | None"], None]


class Dataset:
    """A data set in storage: which samples there are, and which of them and of their columns are wanted.

    Opens ``uri`` at once: a folder or prefix, one object, or a pattern such as ``"s3://bucket/train-{000..099}.tar"``
    (``s3://``, ``gs://``, ``az://``, ``http(s)://``, ``file://`` or a path). The layout is recognised, or named. The
    first opening lists the objects and builds a catalog, which is stored. Later ones compare it with a new listing, if
    it has at most 100,000 objects.

    Immutable: ``filter``, ``columns`` and ``named`` return a new data set. Picklable: unpickling opens it again.

    Args:
        uri: Where it is.
        layout: ``"parquet"``, ``"folder"``, ``"webdataset"``, ``"ilsvrc"``, ``"ipc"``, ``"manifest"``,
            ``"common_voice"``, ``"common_voice_tar"`` or ``"common_voice_hf"``; default: recognised.
        split: Where a place holds several: ``"train"``, ``"dev"``, ``"validated"`` …
        columns: Keep only these; default all.
        durations: ``"auto"`` (default) reads clips' lengths from their headers when the data set has no table of
            them, once, when the catalog is built; ``"never"`` does not.
        storage: Settings of the store: ``endpoint``, ``region``, ``anonymous``, ``path_style``, ``deadline`` (seconds
            that an operation may go on without progress, default 120), ``stall_timeout`` (seconds without an answer,
            default 20), ``max_concurrency``, and any key of
            object_store (``aws_access_key_id`` …). They override the environment (``AWS_*``, ``GOOGLE_*``,
            ``AZURE_*``). They are pickled with the data set, secrets included.
        catalog: Where the catalog is kept: a folder, ``"beside"`` the data, or only in ``"memory"``; default
            ``$FEEDSTOCK_CACHE/catalogs``, else ``~/.cache/feedstock/catalogs``
            (below ``$XDG_CACHE_HOME`` where that is set).
        check: How a stored catalog is compared with the storage. ``"auto"`` (default) lists the objects if the catalog
            has at most 100,000; a larger one is used without a listing, with a warning in the log. ``"list"`` always
            lists them, with one request per 1,000 objects.
        rebuild: Builds the catalog anew even if a stored one fits; default ``False``.
        disk_cache: (folder, bytes): keeps fetched blocks on local disk; default not. The ranks of a machine and its
            data sets may name one folder: each reads what any of them has fetched, and the bytes bound them together.
        block_bytes: Encoded bytes that one read aims at, default 4 MiB. Other blocks are another order.
        bad_shards: ``"raise"`` (default): a Parquet file, IPC file or WebDataset tar that cannot be catalogued, for
            example because its footer is damaged, is a ConfigError. ``"skip"``: it is left out, with a warning in the
            log and a note of the catalog. So is a Parquet or IPC file whose schema differs from that of most files.
            The rest is another data set than the whole: a cursor of one does not fit the other, and ranks of which
            some could read the shard raise an error. Cataloguing reads footers and headers. Damage in pages, in
            values or in payloads is found when they are read, and raises an error with ``"skip"``, too; samples
            that do not decode follow ``on_error``. Failures of the storage never leave a shard out.
        progress: Called with (stage, done, total or None) while the catalog is built, from another thread; default: a
            line on standard error where that is a terminal; ``False``: nothing.

    Raises:
        GoneError: Nothing is there.
        DeniedError: The storage refuses.
        ConfigError: The objects are no data set, or an option does not fit.
    """

    _native: _feedstock.Dataset
    _recipe: tuple[Any, ...]

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        layout: str | None = None,
        split: str | None = None,
        columns: Sequence[str] | None = None,
        durations: Literal["auto", "never"] = "auto",
        storage: Mapping[str, Any] | None = None,
        catalog: str | os.PathLike[str] | None = None,
        check: Literal["auto", "list"] = "auto",
        rebuild: bool = False,
        disk_cache: tuple[str | os.PathLike[str], int] | None = None,
        block_bytes: int | None = None,
        bad_shards: Literal["raise", "skip"] = "raise",
        progress: Progress | Literal[False] | None = None,
    ) -> None:
        one_of("durations", durations, ("auto", "never"))
        one_of("check", check, ("auto", "list"))
        one_of("bad_shards", bad_shards, ("raise", "skip"))
        one_of("rebuild", rebuild, (True, False))
        arguments: dict[str, Any] = {
            "layout": layout,
            "split": split,
            "durations": durations,
            "storage": dict(storage or {}),
            "catalog": catalog if catalog in (None, "beside", "memory") else os.path.abspath(catalog),
            "check": check,
            "rebuild": rebuild,
            "disk_cache": None if disk_cache is None else (os.path.abspath(disk_cache[0]), disk_cache[1]),
            "block_bytes": whole_or_none("block_bytes", block_bytes, 1),
            "bad_shards": bad_shards,
        }
        self._open(os.fspath(uri), arguments, _reporter(progress))
        if columns is not None:
            chosen = self._made(self._native, self._recipe).columns(columns)
            self._native, self._recipe = chosen._native, chosen._recipe

    def _open(self, uri: str, arguments: dict[str, Any], progress: Progress | None) -> None:
        self._native = _feedstock.Dataset.open(uri, **arguments, progress=progress)
        # The resolved URI, because the process that unpickles this may run in another folder. The catalog is rebuilt
        # only once.
        self._recipe = ("open", self._native.opened_uri(), {**arguments, "rebuild": False})

    @classmethod
    def mix(
        cls,
        parts: Iterable[tuple[Dataset, float]],
        *,
        stop: Literal["first_exhausted", "all_exhausted", "never"] = "first_exhausted",
    ) -> Dataset:
        """Mixes data sets by weight: of every so many positions, each has a share that is its weight's, exactly.

        ``stop``: an epoch ends before the first part would repeat, once every part was seen whole (smaller ones
        repeat, shuffled anew), or never. The mix has the parts' columns and ``dataset``, each part's name. For each
        sample of each part once an epoch, see ``concat``.
        """
        parts = list(parts)
        one_of("stop", stop, ("first_exhausted", "all_exhausted", "never"))
        native = _feedstock.Dataset.mix([(part._native, float(weight)) for part, weight in parts], stop)
        return cls._made(native, ("mix", parts, stop))

    @classmethod
    def concat(cls, parts: Iterable[Dataset]) -> Dataset:
        """Joins data sets end to end: every sample of every part is in each epoch exactly once.

        Like ``torch.utils.data.ConcatDataset`` and ``datasets.concatenate_datasets``. The result has the order of one
        data set: ``shuffle`` shuffles samples of all parts with each other. Without it, the parts come in sequence.

        - Columns: those of the parts by name, null where a part lacks one, widened where number or text types differ,
          and ``dataset``, each part's name.
        - Filters of the parts hold, and the result can be filtered.
        - A concatenation of concatenations is the concatenation of all their parts. A concatenation can be part of a
          mix, with one weight. A mix cannot be part of a concatenation.
        - The same parts in another sequence are another data set: a saved state of one does not load into the other.

        Args:
            parts: The data sets. Two of the same URI need names of their own (``named``).

        Raises:
            ConfigError: No parts, a part that is a mix, two parts of one name, or columns of one name that do not go
                together. The message names the part and the column.
        """
        parts = list(parts)
        for part in parts:
            if not isinstance(part, Dataset):
                raise ConfigError(f"parts must be data sets; got {type(part).__name__}")
        return cls._made(_feedstock.Dataset.concat([part._native for part in parts]), ("concat", parts))

    @classmethod
    def _made(cls, native: _feedstock.Dataset, recipe: tuple[Any, ...]) -> Dataset:
        dataset = cls.__new__(cls)
        dataset._native, dataset._recipe = native, recipe
        return dataset

    def filter(self, sql: str) -> Dataset:
        """Keeps the samples for which the SQL expression over the catalog's columns is true, as ``"label < 100"`` or
        ``"duration < 20 and locale = 'de'"``. Successive filters are ANDed."""
        return self._made(self._native.filter(sql), ("filter", self, sql))

    def columns(self, names: Sequence[str]) -> Dataset:
        """Keeps only these columns in batches, in this order; only they are read."""
        return self._made(self._native.columns(list(names)), ("columns", self, list(names)))

    def named(self, name: str) -> Dataset:
        """The same data set with a name for the column ``dataset`` of a mix or a concatenation; default its URI."""
        return self._made(self._native.named(name), ("named", self, name))

    def sql(self, query: str) -> _feedstock.Table:
        """Runs a query over the table ``catalog``, as ``"select label, count(*) from catalog group by label"``, of all
        samples, filtered or not. For ``pyarrow.table(result)`` or ``polars.DataFrame(result)``."""
        return self._native.sql(query)

    def doctor(
        self, samples: int | None = None, *, threads: int | None = None, listed: int = 100
    ) -> dict[str, Any]:
        """Decodes the samples and reports what would be refused or is unusual, and how good the layout is.

        Every column of encoded samples is decoded whole, with the default limits. Samples that cannot be decoded are
        part of the report, not exceptions.

        Args:
            samples: Number of samples to read, in evenly spaced runs of 64; default all.
            threads: CPU threads; default: this rank's share of the CPUs (all, divided by ``LOCAL_WORLD_SIZE``).
            listed: Refused samples to list by name, per column; default 100. All are counted.

        Returns:
            ``examined``; ``columns``, each with ``refused``, ``refusals`` (``sample``, ``name``, ``reason``),
            ``formats``, ``rates``, ``width``, ``height``, ``seconds`` and ``unusual``; ``unreadable`` blocks; and
            ``layout`` with ``advice``. The same as ``feedstock doctor URI --json`` prints.

        Raises:
            ConfigError: ``samples`` or ``threads`` is below 1, or no column holds encoded samples.
            DeniedError: The storage refuses.
            RetryableError: The storage failed.
        """
        report = self._native.doctor(
            whole_or_none("samples", samples, 1),
            whole_or_none("threads", threads, 1),
            whole("listed", listed),
        )
        return dict(json.loads(report))

    @property
    def schema(self) -> dict[str, str]:
        """Names and Arrow types of all columns that there are."""
        return dict(self._native.schema())

    @property
    def uri(self) -> str:
        """The URI that it was opened by. A URL lacks its user name, its password, and what signs it."""
        return self._native.uri()

    def __len__(self) -> int:
        """Samples that the filters keep."""
        return self._native.samples()

    def map(
        self,
        column: str,
        *ops: Op | Iterable[Op],
        output: str | None = None,
        pad_value: float = 0.0,
        key: str | None = None,
    ) -> Pipeline:
        """Begins a pipeline: see ``Pipeline.map``."""
        return self.pipeline().map(column, *ops, output=output, pad_value=pad_value, key=key)

    def shuffle(self, seed: int = 0, **options: Any) -> Pipeline:
        """Begins a pipeline: see ``Pipeline.shuffle``."""
        return self.pipeline().shuffle(seed, **options)

    def batch(self, batch_size: int | None = None, **options: Any) -> Pipeline:
        """Begins a pipeline: see ``Pipeline.batch``."""
        return self.pipeline().batch(batch_size, **options)

    def pipeline(self) -> Pipeline:
        """A pipeline over this data set: its order, one sample a batch, no column mapped."""
        from feedstock._pipeline import Pipeline

        return Pipeline(self)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _rebuild, self._recipe

    def __repr__(self) -> str:
        return f"Dataset({self.uri!r}, {len(self)} samples)"


def _rebuild(step: str, *arguments: Any) -> Dataset:
    if step == "open":
        uri, options = arguments
        dataset = Dataset.__new__(Dataset)
        dataset._open(uri, options, None)
        return dataset
    if step == "mix":
        return Dataset.mix(arguments[0], stop=arguments[1])
    if step == "concat":
        return Dataset.concat(arguments[0])
    before, argument = arguments
    changed: Dataset = getattr(before, step)(argument)
    return changed


def _reporter(progress: Progress | Literal[False] | None) -> Progress | None:
    if progress is not None:
        return progress or None
    return _StatusLine().tell if sys.stderr is not None and sys.stderr.isatty() else None


class _StatusLine:
    """One line on a terminal, from the first second on."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1.0

    def tell(self, stage: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 0.2
        of = "" if total is None else f" of {total:,}"
        sys.stderr.write(f"\rfeedstock: {stage}: {done:,}{of}\x1b[K\r")
        sys.stderr.flush()
