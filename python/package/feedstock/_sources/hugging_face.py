"""Data sets of Hugging Face's ``datasets``: their Arrow files are opened where they are."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feedstock._sources import tables
from feedstock._sources.arrow import Folder, open_stored
from feedstock._sources.cache import Place
from feedstock.errors import ConfigError

if TYPE_CHECKING:
    from feedstock._dataset import Dataset

log = logging.getLogger("feedstock")

# Rows that are converted at a time where the data set is written again.
_ROWS = 1000

# Changes of a table that leave the values of the columns in the file: others are not looked into.
_HARMLESS = ("replace_schema_metadata", "cast", "drop", "select", "slice")


def from_huggingface(dataset: Any, *, folder: Folder = None) -> Dataset:
    """Opens a ``datasets.Dataset``. Its Arrow files are read where they are, and are not copied.

    ``select``, ``filter``, ``train_test_split`` and ``shard`` become a selection of samples. So does ``shuffle``, whose
    sequence has no effect: use ``Pipeline.shuffle``. Columns that were removed are not read.

    What the files do not have is written once to an Arrow IPC file, as ``from_arrow`` does: data sets in memory,
    renamed, added and cast columns, and rows that were selected twice.

    Args:
        dataset: One split. Encoded images and audio are columns of bytes, to be decoded by ``Pipeline.map``. A format
            such as ``"torch"`` has no effect, since ``output`` of the loader sets the form; its columns are chosen.
        folder: As in ``from_arrow``; also for the links to the Arrow files.

    Raises:
        ConfigError: ``dataset`` is not a ``datasets.Dataset`` of one split, has no rows, or has a transform
            (``set_transform``, ``with_transform``): give its function to ``Pipeline.map_rows``.

    Example:
        >>> import datasets
        >>> rows = datasets.Dataset.from_dict({"text": ["good", "bad", "fine"], "label": [1, 0, 1]})
        >>> (batch,) = fs.from_huggingface(rows.select([0, 2])).batch(2).loader(output="numpy")
        >>> batch["text"], batch["label"].tolist()
        (['good', 'fine'], [1, 1])
    """
    _check(dataset)
    files = _files(dataset)
    selected = None if files is None else _selected(dataset, files)
    if files is None or selected is None:
        return _written(dataset, folder)
    opened = _linked(dataset, files, folder)
    total = sum(file.rows for file in files)
    if len(selected) < total:
        opened = opened.select(selected)
    return opened.columns(_columns(dataset))


def _check(dataset: Any) -> None:
    kind = type(dataset)
    if kind.__module__.partition(".")[0] != "datasets":
        raise ConfigError(f"dataset must be a datasets.Dataset; got {kind.__qualname__}")
    if isinstance(dataset, dict):
        raise ConfigError(
            f"dataset must be one split; choose one of {', '.join(map(repr, dataset))}: dataset['…']"
        )
    if not hasattr(dataset, "_data"):
        raise ConfigError(
            f"dataset must be a datasets.Dataset, whose rows are in Arrow files; got {kind.__qualname__}. Load it "
            "without streaming=True, or open its files by fs.Dataset"
        )
    if dataset.format["type"] == "custom":
        raise ConfigError(
            "the data set has a transform (set_transform or with_transform), which would not run. Remove it by "
            "dataset.reset_format(), and give its function to Pipeline.map_rows, which runs it on every sample"
        )
    if len(dataset) == 0:
        raise ConfigError("the data set has no rows")


def _columns(dataset: Any) -> list[str]:
    """Returns the columns of the format: all, unless ``set_format`` chose some."""
    if dataset.format["output_all_columns"]:
        return list(dataset.column_names)
    return list(dataset.format["columns"])


@dataclass(frozen=True)
class _File:
    """An Arrow file, and the part of its rows that the data set has."""

    path: str
    rows: int
    start: int
    length: int


def _files(dataset: Any) -> list[_File] | None:
    """Returns the files that hold the data set; None if they do not hold it unchanged."""
    found: list[_File] = []
    for block in _blocks(dataset._data):
        path = getattr(block, "path", None)
        if path is None or any(name not in _HARMLESS for name, _, _ in block.replays):
            return None
        types, rows = _stored(path)
        if any(types.get(field.name) != field.type for field in dataset.data.schema):
            return None
        start, length = 0, rows
        for name, arguments, keywords in block.replays:
            if name == "slice":
                given = dict(zip(("offset", "length"), arguments, strict=False)) | keywords
                offset = given.get("offset", 0)
                most = max(0, length - offset)
                start, length = (
                    start + offset,
                    most if given.get("length") is None else min(most, given["length"]),
                )
        if length != block.num_rows:
            return None
        found.append(_File(path, rows, start, length))
    is_once = len({file.path for file in found}) == len(found)
    return found if found and is_once else None


def _blocks(table: Any) -> Iterator[Any]:
    rows = getattr(table, "blocks", None)
    if rows is None:
        yield table
        return
    for row in rows:
        # Several blocks in a row are columns of several tables.
        yield row[0] if len(row) == 1 else None


def _stored(path: str) -> tuple[dict[str, Any], int]:
    """Returns the types of a file's columns, and its rows."""
    pa = tables.pyarrow_for("from_huggingface")
    with pa.memory_map(path) as memory:
        try:
            reader = pa.ipc.open_stream(memory)
            rows = sum(batch.num_rows for batch in reader)
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(memory)
            rows = sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))
        return {field.name: field.type for field in reader.schema}, rows


def _selected(dataset: Any, files: Sequence[_File]) -> Any:
    """Returns the ids of the data set's rows, in a data set of all rows of the files; None if a row is listed twice."""
    first, parts = 0, []
    for file in files:
        parts.append(np.arange(first + file.start, first + file.start + file.length))
        first += file.rows
    ids = np.concatenate(parts)
    if dataset._indices is None:
        return ids
    chosen = ids[dataset._indices.column(0).to_numpy()]
    return chosen if len(np.unique(chosen)) == len(chosen) else None


def _linked(dataset: Any, files: Sequence[_File], folder: Folder) -> Dataset:
    """Opens the files by a folder of links: they are in several folders, and cache-*.arrow would not be data."""
    from feedstock._dataset import Dataset

    names = [f"{number:05}-{os.path.basename(file.path)}" for number, file in enumerate(files)]
    described = json.dumps([file.path for file in files]).encode()
    name = f"huggingface-{hashlib.blake2b(described, digest_size=16).hexdigest()}"

    def write(path: Path) -> str:
        path.mkdir()
        for link, file in zip(names, files, strict=True):
            (path / link).symlink_to(file.path)
        return name

    place = Place(folder)
    return Dataset(place.find(name) or place.add(write), layout="ipc", progress=False)


def _written(dataset: Any, folder: Folder) -> Dataset:
    """Writes the rows to a file: in the sequence of the data set, with the features of the columns."""
    pa = tables.pyarrow_for("from_huggingface")
    columns = _columns(dataset)
    if dataset.cache_files:
        log.info(
            "from_huggingface writes %d rows to the cache, since the Arrow files do not have them unchanged",
            len(dataset),
        )
    rows = dataset.with_format("arrow", columns=columns)
    schema = dataset.select_columns(columns).features.arrow_schema

    def read() -> Any:
        batches = (batch for table in rows.iter(_ROWS) for batch in table.cast(schema).to_batches())
        return pa.RecordBatchReader.from_batches(schema, batches)

    return open_stored(read, is_again=True, folder=folder, function="from_huggingface")
