"""Data sets: opening, mixing and concatenating them."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from feedstock import _feedstock
from feedstock._check import column_names, folders, number, one_of, text, whole, whole_or_none
from feedstock._looking import Looking
from feedstock._pipeline import Pipeline
from feedstock._progress import Progress, reporter
from feedstock._selecting import Selecting
from feedstock._table import Table
from feedstock.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

    from feedstock._joint import JointColumn
    from feedstock._steps import FromOutput
    from feedstock._views import Views
    from feedstock.ops import Op

F = TypeVar("F", bound=Callable[..., Any])


class DatasetOptions(TypedDict, total=False):
    """Keywords of ``Dataset`` except ``layout``, for functions that pass them on."""

    split: str | None
    columns: Sequence[str] | None
    durations: Literal["auto", "never"]
    storage: Mapping[str, Any] | None
    catalog: str | os.PathLike[str] | None
    catalogs_from: str | Sequence[str]
    check: Literal["auto", "list"]
    rebuild: bool
    disk_cache: tuple[str | os.PathLike[str], int] | None
    block_bytes: int | None
    bad_shards: Literal["raise", "skip"]
    tar_headers: Literal["open", "read"]
    pair: Mapping[str, str] | None
    annotations: str | os.PathLike[str] | None
    progress: Progress | Literal[False] | None


def _begins(method: Callable[..., Pipeline]) -> Callable[[F], F]:
    """Decorates a method of ``Dataset`` that makes a pipeline and calls the method of ``Pipeline``, which has the same
    parameters. Documentation is that of ``Pipeline``; the decorated function declares the signature for type checkers.
    """

    def decorate(declared: F) -> F:
        signature = inspect.signature(declared)
        assert str(signature.parameters) == str(inspect.signature(method).parameters), method

        @functools.wraps(method)
        def begun(self: Dataset, /, *args: Any, **keywords: Any) -> Pipeline:
            return method(self.pipeline(), *args, **keywords)

        begun.__signature__ = signature  # type: ignore[attr-defined]
        return begun  # type: ignore[return-value]

    return decorate


class Dataset(Selecting, Looking):
    """Opens a data set in object storage or on disk, and selects samples and columns.

    The first opening lists the objects and builds a catalog, which is stored. Later openings compare a catalog of up to
    100,000 objects with a new listing.

    Immutable: ``filter``, ``take``, ``columns`` and others return a new data set. Picklable: unpickling opens it again.

    Args:
        uri: A folder or prefix, one object, or a pattern such as ``"s3://bucket/train-{000..099}.tar"``. Schemes:
            ``s3://``, ``gs://``, ``az://``, ``http(s)://``, ``file://`` and paths.
        layout: ``"parquet"``, ``"folder"``, ``"webdataset"``, ``"ilsvrc"``, ``"ipc"``, ``"manifest"``,
            ``"common_voice"``, ``"common_voice_tar"`` or ``"common_voice_hf"``; default: recognised. ``pair`` and
            ``annotations`` imply theirs, ``"pair"`` and ``"coco"``.
        split: The split to open if there are several: ``"train"``, ``"dev"``, ``"validated"`` …
        columns: The columns to keep; default: all.
        durations: ``"auto"`` (default) reads durations from the headers of audio files, once, when the catalog is
            built, if the data set has no table of them. ``"never"`` does not.
        storage: Settings of the store: ``endpoint``, ``region``, ``anonymous``, ``path_style``, ``deadline`` (seconds
            that an operation may take without progress, default 120), ``stall_timeout`` (seconds without a response,
            default 20), ``max_concurrency`` (requests under way at once; default: 128 for buckets,
            32 for web servers), ``hedge`` (``False`` does not request late reads a second time, default
            ``True``), ``readers`` (the processes that read at the same time, each of which begins with few requests;
            default: ``WORLD_SIZE``, else 1), and any key of object_store (``aws_access_key_id`` …). They override the
            environment (``AWS_*``, ``GOOGLE_*``, ``AZURE_*``). They are pickled with the data set, secrets included.
        catalog: Where the catalog is stored: a folder, ``"beside"`` for a file next to the data, or only in
            ``"memory"``. Default: ``$FEEDSTOCK_CACHE/catalogs``, else ``~/.cache/feedstock/catalogs`` (in
            ``$XDG_CACHE_HOME`` if that is set).
        catalogs_from: Folders, local or in a bucket, in which ready catalogs are looked for before one is built:
            ``publish_catalog`` stores them there. ``"beside"``: ``_feedstock/`` next to the data. Default: none. A
            ready catalog is used only if it fits the files that the storage lists now.
        check: How a stored catalog is compared with the storage. ``"auto"`` (default) lists the objects if the catalog
            has at most 100,000; a larger one is used without a listing, and a warning is logged. ``"list"`` always
            lists them, with one request per 1,000 objects.
        rebuild: ``True`` builds the catalog again even if a stored one is valid; default ``False``.
        disk_cache: (folder, bytes): caches fetched blocks on local disk; default: no cache. The ranks and data sets of
            a machine may share one folder. Each then reads what any of them has fetched, and the limit is for all
            together.
        block_bytes: The target size of one read in encoded bytes; default 4 MiB. Another size is another order.
        bad_shards: The reaction to a Parquet file, IPC file or WebDataset tar that cannot be catalogued, for example
            because its footer is damaged. ``"raise"`` (default): ConfigError. ``"skip"``: the shard is left out, with
            a warning in the log and a note in the catalog. So is a Parquet or IPC file whose schema differs from that
            of most files. The result is another data set: cursors of one do not fit the other, and ranks of which only
            some could read the shard raise an error. Cataloguing reads footers and headers only. Damage in pages,
            values or payloads raises an error when it is read, with ``"skip"``, too; samples that do not decode
            follow ``on_error``. A failure of the storage never leaves a shard out.
        tar_headers: When the headers of WebDataset tars are read. ``"open"`` (default): when the catalog is built.
            ``"read"``: with the samples, so that tars of many TB are opened in seconds. Each tar then needs an index of
            offsets, ``x.tar.idx`` of Megatron Energon. Columns are ``key`` and the members of the first sample; a
            sample that lacks one has a null there, and members of other extensions are ignored, with a warning. A
            filter on ``key`` reads all headers each time the data set is opened. The order differs from that of
            ``"open"``, so cursors of one do not fit the other. If the first sample has text or audio, headers are read
            as with ``"open"``.
        pair: Folders of files that belong together by their names: column to pattern, such as ``{"image":
            "images/{}.jpg", "mask": "annotations/{}.png"}``. Patterns are relative to the folder ``uri``. ``{}`` is the
            key of a sample and may span ``/``; wildcards are not supported. Columns: ``key``, and the bytes of the
            files by the given names, sorted. Samples are sorted by key. A file without its partner is a ConfigError;
            with ``bad_shards="skip"``, its sample is left out.
        annotations: A file of annotations in COCO's format (JSON, at most 2 GiB) for the images in the folder ``uri``:
            a URI, or a path relative to that folder, which may begin with ``../``. A sample for each of its ``images``,
            sorted by ``file_name``, which is relative to the folder. Columns: ``image`` (bytes), ``image_id``,
            ``file_name``, ``width``, ``height``; with boxes ``boxes`` (lists of x, y, width, height, float32),
            ``category_id``, ``area``, ``iscrowd`` and ``keypoints``; with captions ``captions``. Lists are empty for an
            image without annotations. ``class_names("category_id")`` has the categories' names by id. Segmentations
            are not read. An image without its file is a ConfigError; with ``bad_shards="skip"``, it is left out.
        progress: Called from another thread with (stage, done, total or None) while the catalog is built. Default: a
            status line if standard error is a terminal. ``False``: no progress.

    Raises:
        GoneError: There is nothing at the URI.
        DeniedError: The storage denies access.
        ConfigError: The objects are not a data set, or an option is not valid.

    Example:
        >>> data = fs.Dataset(images, columns=["image", "label"])
        >>> len(data), data.schema["label"], len(data.filter("label >= 0"))
        (8, 'Int64', 8)
        >>> list(next(iter(data.batch(2).loader())))
        ['image', 'label']
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
        catalogs_from: str | Sequence[str] = (),
        check: Literal["auto", "list"] = "auto",
        rebuild: bool = False,
        disk_cache: tuple[str | os.PathLike[str], int] | None = None,
        block_bytes: int | None = None,
        bad_shards: Literal["raise", "skip"] = "raise",
        tar_headers: Literal["open", "read"] = "open",
        pair: Mapping[str, str] | None = None,
        annotations: str | os.PathLike[str] | None = None,
        progress: Progress | Literal[False] | None = None,
    ) -> None:
        one_of("durations", durations, ("auto", "never"))
        one_of("check", check, ("auto", "list"))
        one_of("bad_shards", bad_shards, ("raise", "skip"))
        one_of("tar_headers", tar_headers, ("open", "read"))
        one_of("rebuild", rebuild, (True, False))
        arguments: dict[str, Any] = {
            "layout": layout,
            "split": split,
            "durations": durations,
            "storage": _settings(storage),
            "catalog": catalog if catalog in (None, "beside", "memory") else os.path.abspath(catalog),
            "catalogs_from": folders("catalogs_from", catalogs_from),
            "check": check,
            "rebuild": rebuild,
            "disk_cache": None if disk_cache is None else _disk_cache(disk_cache),
            "block_bytes": whole_or_none("block_bytes", block_bytes, 1),
            "bad_shards": bad_shards,
            "tar_headers": tar_headers,
            "pair": _patterns(pair),
            "annotations": None if annotations is None else os.fspath(annotations),
        }
        self._open(os.fspath(uri), arguments, reporter(progress))
        if columns is not None:
            chosen = self._made(self._native, self._recipe).columns(columns)
            self._native, self._recipe = chosen._native, chosen._recipe

    def _open(self, uri: str, arguments: dict[str, Any], progress: Progress | None) -> None:
        self._native = _feedstock.Dataset.open(uri, **arguments, progress=progress)
        # The resolved URI, because the process that unpickles this may run in another folder. `rebuild` applies only
        # once.
        self._recipe = ("open", self._native.opened_uri(), {**arguments, "rebuild": False})

    @classmethod
    def mix(
        cls,
        parts: Iterable[tuple[Dataset, float]],
        *,
        stop: Literal["first_exhausted", "all_exhausted", "never"] = "first_exhausted",
    ) -> Dataset:
        """Mixes data sets by weight.

        Positions are divided into cycles, which have at least 1,024 of them. In each cycle, every part has exactly its
        weight's share, rounded to whole samples. The mix has the parts' columns, and ``dataset`` with the name of each
        sample's part. To deliver each sample of each part once an epoch, use ``concat``.

        Args:
            parts: Pairs of data set and weight. Weights are above 0 and need not add up to 1.
            stop: When an epoch ends. ``"first_exhausted"`` (default): before the first part would repeat.
                ``"all_exhausted"``: when every part was delivered completely; smaller parts repeat, shuffled anew.
                ``"never"``: not at all.

        Raises:
            ConfigError: No parts, a weight that is not a finite number above 0, a part that is a mix, two parts of one
                name, or columns of one name whose types differ.

        Example:
            >>> one, other = fs.Dataset(images).named("one"), fs.Dataset(images).named("other")
            >>> mixed = fs.Dataset.mix([(one, 3), (other, 1)], stop="never").shuffle(seed=7)
            >>> batch = next(iter(mixed.batch(1024).loader()))
            >>> batch["dataset"].count("one"), batch["dataset"].count("other")
            (768, 256)
        """
        parts = list(parts)
        for part in parts:
            if not (isinstance(part, (tuple, list)) and len(part) == 2 and isinstance(part[0], Dataset)):
                raise ConfigError(f"parts must be pairs of a data set and its weight; got {part!r}")
            _check_part(part[0])
        one_of("stop", stop, ("first_exhausted", "all_exhausted", "never"))
        weighted = [(part._native, number("a weight", weight)) for part, weight in parts]
        native = _feedstock.Dataset.mix(weighted, stop)
        return cls._made(native, ("mix", parts, stop))

    @classmethod
    def concat(cls, parts: Iterable[Dataset]) -> Dataset:
        """Joins data sets end to end: each epoch has every sample of every part exactly once.

        Like ``torch.utils.data.ConcatDataset`` and ``datasets.concatenate_datasets``. The result has the order of one
        data set: ``shuffle`` shuffles samples of all parts together. Without it, the parts follow one another.

        - Columns: all columns of the parts, by name. Values are null if a part lacks the column, and widened if types
          of numbers or text differ. ``dataset`` has the name of each sample's part.
        - Filters of the parts apply, and the result can be filtered.
        - A concatenation of concatenations is the concatenation of all their parts. A concatenation can be part of a
          mix, with one weight. A mix cannot be part of a concatenation.
        - The same parts in another sequence are another data set: a saved state of one does not load into the other.

        Args:
            parts: The data sets. Two of the same URI need different names (``named``).

        Raises:
            ConfigError: No parts, a part that is a mix, two parts of one name, or columns of one name whose types
                cannot be combined. The message names the part and the column.

        Example:
            >>> one, other = fs.Dataset(images).named("one"), fs.Dataset(images).named("other")
            >>> joined = fs.Dataset.concat([one, other])
            >>> len(joined), len(joined.filter("dataset = 'other'"))
            (16, 8)
        """
        parts = list(parts)
        for part in parts:
            if not isinstance(part, Dataset):
                raise ConfigError(f"parts must be data sets; got {type(part).__name__}")
            _check_part(part)
        return cls._made(_feedstock.Dataset.concat([part._native for part in parts]), ("concat", parts))

    @classmethod
    def _made(cls, native: _feedstock.Dataset, recipe: tuple[Any, ...]) -> Self:
        dataset = cls.__new__(cls)
        dataset._native, dataset._recipe = native, recipe
        return dataset

    def columns(self, names: Sequence[str]) -> Dataset:
        """Keeps only these columns, in this order. Other columns are not read."""
        chosen = column_names("columns", names)
        return self._made(self._native.columns(chosen), ("columns", self, chosen))

    def named(self, name: str) -> Dataset:
        """Names the data set in the column ``dataset`` of a mix or a concatenation; default: its URI."""
        return self._made(self._native.named(text("name", name)), ("named", self, name))

    def publish_catalog(self, folder: str | os.PathLike[str]) -> None:
        """Copies the stored catalog into a folder, local or in a bucket, for ``Dataset(catalogs_from=folder)``.

        Of a mix or a concatenation, the catalogs of all its parts.

        Raises:
            ConfigError: A catalog is not stored, or is of compressed archives that were unpacked on this machine.
        """
        self._native.publish_catalog(os.fspath(folder))

    def sql(self, query: str) -> Table:
        """Runs a query over the table ``catalog``, which has all samples, regardless of filters.

        Args:
            query: For example ``"select label, count(*) from catalog group by label"``.

        Returns:
            A table. It prints, has ``rows()``, and goes to ``pyarrow.table(result)`` and ``polars.DataFrame(result)``.
        """
        return Table(self._native.sql(text("query", query)))

    def doctor(
        self,
        samples: int | None = None,
        *,
        threads: int | None = None,
        listed: int = 100,
        masks: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Decodes the samples and reports those that are bad or unusual, and the quality of the layout.

        Every column of encoded samples is decoded completely, with the default limits, ``decoder_memory`` and
        ``budget_bytes``. Samples that cannot be decoded are part of the report, not exceptions.

        Args:
            samples: Number of samples to read, in evenly spaced runs of 64; default all.
            threads: CPU threads; default: this rank's share of the CPUs (all, divided by ``LOCAL_WORLD_SIZE``).
            listed: Bad samples to list by name, per column; default 100. All are counted.
            masks: Columns of masks, which are decoded as ``fs.mask()`` does: images with colours and without a palette
                are bad. Default: none, so every image is decoded as RGB.

        Returns:
            ``examined``; ``columns``, each with ``refused``, ``refusals`` (``sample``, ``name``, ``reason``),
            ``unsupported`` (codecs that are not decoded), ``formats``, ``rates``, ``width``, ``height``, ``seconds``
            and ``unusual``; ``unreadable`` blocks; and ``layout`` with ``advice``. ``feedstock doctor URI --json``
            prints the same.

        Raises:
            ConfigError: ``samples`` or ``threads`` is below 1, no column holds encoded samples, or one of ``masks`` is
                not a column of images.
            DeniedError: The storage denies access.
            RetryableError: The storage failed.
        """
        report = self._native.doctor(
            whole_or_none("samples", samples, 1),
            whole_or_none("threads", threads, 1),
            whole("listed", listed),
            column_names("masks", masks),
        )
        return dict(json.loads(report))

    @property
    def schema(self) -> dict[str, str]:
        """The names and Arrow types of all columns."""
        return dict(self._native.schema())

    @property
    def uri(self) -> str:
        """The URI that the data set was opened with, without user name, password and signature."""
        return self._native.uri()

    def __len__(self) -> int:
        """Returns the number of samples in an epoch: the selected ones, or the draws by weight."""
        return self._native.samples()

    @_begins(Pipeline.map)
    def map(
        self,
        column: str | Mapping[str, JointColumn],
        *ops: Op | Views | Iterable[Op | Views],
        output: str | None = None,
        pad_value: float = 0.0,
        key: str | None = None,
        max_images: int | None = None,
    ) -> Pipeline[FromOutput]:
        raise NotImplementedError

    @_begins(Pipeline.shuffle)
    def shuffle(
        self,
        seed: int = 0,
        *,
        window: int | None = None,
        lanes: int | None = None,
        full: bool = False,
        shuffle_bytes: int | None = None,
        piece: int | None = None,
    ) -> Pipeline[FromOutput]:
        raise NotImplementedError

    @_begins(Pipeline.batch)
    def batch(
        self,
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        total: float | None = None,
        global_total: float | None = None,
        max_rows: int | None = None,
        tail: Literal["drop", "pad"] = "drop",
    ) -> Pipeline[FromOutput]:
        raise NotImplementedError

    def pipeline(self) -> Pipeline[FromOutput]:
        """Returns a pipeline over this data set: not shuffled, no column mapped, batches of one sample."""
        return Pipeline(self)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _rebuild, self._recipe

    def __repr__(self) -> str:
        return f"Dataset({self.uri!r}, {len(self)} samples)"


def _check_part(part: Dataset) -> None:
    if part._functions:
        raise ConfigError(
            f"{part._functions[0]} cannot be a part of a mix or a concatenation: its items are made after them. Join "
            "torch data sets by torch.utils.data.ConcatDataset"
        )


def _settings(storage: Any) -> dict[str, Any]:
    if storage is not None and not isinstance(storage, Mapping):
        raise ConfigError(f"storage must be a dict of settings; got {storage!r}")
    return dict(storage or {})


def _disk_cache(given: Any) -> tuple[str, int]:
    if not (
        isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[0], (str, os.PathLike))
    ):
        raise ConfigError(f"disk_cache must be a pair of a folder and its bytes; got {given!r}")
    return os.path.abspath(given[0]), whole("the bytes of disk_cache", given[1], 1)


def _patterns(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if (
        not isinstance(given, Mapping)
        or not given
        or not all(isinstance(one, str) for entry in given.items() for one in entry)
    ):
        raise ConfigError(f"pair must map names of columns to patterns of file names; got {given!r}")
    return dict(given)


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
    before, *given = arguments
    if step == "part":
        key, shares, seed, name = given
        return before.split_by(key, dict(shares), seed)[name]  # type: ignore[no-any-return]
    changed: Dataset = getattr(before, step)(*given)
    return changed
