"""Data sets of tables in memory, streams of Arrow batches, and lists."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedstock._sources import tables
from feedstock._sources.cache import Place
from feedstock.errors import ConfigError

if TYPE_CHECKING:
    from feedstock._dataset import Dataset

Folder = str | os.PathLike[str] | None


def from_arrow(data: Any, *, folder: Folder = None) -> Dataset:
    """Opens a table in memory, or a stream of record batches, as a data set.

    The rows are written once to an Arrow IPC file, which is named by a digest of them. Equal rows have the same
    identity and saved positions, on every machine, however they are divided into chunks. Columns of categories become
    columns of their values, and extension types their storage. See ``docs/python/sources.md``.

    Args:
        data: An object with ``__arrow_c_stream__``: a table or a ``RecordBatchReader`` of pyarrow, a data frame of
            polars or pandas, a relation of DuckDB.
        folder: Where the file is written; nothing is removed there. Default: ``$FEEDSTOCK_CACHE/sources``, else
            ``~/.cache/feedstock/sources``, where files that were not opened for 30 days are removed when another one
            is written. For workers and processes on other machines, name a folder that all of them see.

    Raises:
        ConfigError: ``data`` has no such method or no rows, a column cannot be stored, or pyarrow is not installed.

    Example:
        >>> import pyarrow
        >>> dataset = fs.from_arrow(pyarrow.table({"celsius": [3.5, 4.0, 21.0, 18.5], "town": list("abca")}))
        >>> (batch,) = dataset.filter("celsius < 20").batch(3).loader(output="numpy")
        >>> batch["celsius"].tolist(), batch["town"]
        ([3.5, 4.0, 18.5], ['a', 'b', 'a'])
    """
    return _stored(data, folder, "from_arrow")


def from_pandas(frame: Any, *, folder: Folder = None) -> Dataset:
    """Opens a data frame of pandas as a data set, as ``from_arrow`` does. The index is left out.

    Args:
        frame: The data frame. Categories become their values, missing values are nulls: see ``Pipeline.nulls``.
        folder: As in ``from_arrow``.

    Raises:
        ConfigError: ``frame`` is not a data frame or has no rows, a column has mixed types, or pyarrow is not
            installed.

    Example:
        >>> import pandas
        >>> frame = pandas.DataFrame({"text": ["good", "bad", "fine"], "stars": pandas.array([5, 1, None], "Int64")})
        >>> (batch,) = fs.from_pandas(frame).batch(3).nulls({"stars": -1}).loader(output="numpy")
        >>> batch["text"], batch["stars"].tolist()
        (['good', 'bad', 'fine'], [5, 1, -1])
    """
    if type(frame).__module__.partition(".")[0] != "pandas" or not hasattr(frame, "columns"):
        raise ConfigError(f"frame must be a pandas.DataFrame; got {type(frame).__name__}")
    for name in frame.columns:
        if not isinstance(name, str):
            raise ConfigError(
                f"columns of the data frame must be strings; got {name!r}. Rename them: frame.columns = …"
            )
    return _stored(frame.reset_index(drop=True), folder, "from_pandas")


def from_items(items: Iterable[Any], *, folder: Folder = None) -> Dataset:
    """Opens a list as a data set: the sample ``i`` is its element ``i``.

    Args:
        items: Dicts from column to value, in which missing keys and None are nulls; or other values, which become the
            column ``item``. Values are numbers, flags, texts, bytes, dates, and lists, arrays or tensors of one axis.
        folder: As in ``from_arrow``.

    Raises:
        ConfigError: There are no items, values of a column have several types, or pyarrow is not installed.

    Example:
        >>> dataset = fs.from_items([{"text": "good", "label": 1}, {"text": "bad", "label": 0}])
        >>> (batch,) = dataset.batch(2).loader(output="numpy")
        >>> batch["text"], batch["label"].tolist()
        (['good', 'bad'], [1, 0])
        >>> fs.from_items(range(1000)).schema
        {'item': 'Int64'}
    """
    pa = tables.pyarrow_for("from_items")
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise ConfigError(f"items must be a list of dicts or values; got {type(items).__name__}")
    listed = list(items)
    is_dict = [isinstance(item, Mapping) for item in listed]
    if any(is_dict) and not all(is_dict):
        other = is_dict.index(False)
        raise ConfigError(f"items must all be dicts, or none; item {other} is {type(listed[other]).__name__}")
    if not any(is_dict):
        return _stored(pa.table({"item": _column("item", listed, pa)}), folder, "from_items")
    names = list(dict.fromkeys(name for item in listed for name in item))
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"keys of items must be non-empty strings; got {name!r}")
    columns = {name: _column(name, [item.get(name) for item in listed], pa) for name in names}
    return _stored(pa.table(columns), folder, "from_items")


def _column(name: str, values: list[Any], pa: Any) -> Any:
    plain = [
        value.numpy() if hasattr(value, "numpy") and hasattr(value, "dtype") else value for value in values
    ]
    try:
        return pa.array(plain)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise ConfigError(
            f"values of {name!r} cannot be one column: {error}. They must have one type, and arrays one axis"
        ) from error


def _stored(data: Any, folder: Folder, function: str) -> Dataset:
    pa = tables.pyarrow_for(function)
    if not hasattr(data, "__arrow_c_stream__"):
        raise ConfigError(
            f"{function} takes objects with __arrow_c_stream__, such as tables of pyarrow and data frames of polars "
            f"and pandas; got {type(data).__name__}"
        )

    def read() -> Any:
        try:
            return pa.RecordBatchReader.from_stream(data)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise ConfigError(
                f"{function} cannot read this {type(data).__name__} as Arrow: {error}"
            ) from error

    return open_stored(
        read,
        is_again=hasattr(data, "__len__") or isinstance(data, pa.Table),
        folder=folder,
        function=function,
    )


def open_stored(read: Callable[[], Any], *, is_again: bool, folder: Folder, function: str) -> Dataset:
    """Stores the rows of a reader, unless they are there, and opens them.

    Args:
        read: Returns a ``pyarrow.RecordBatchReader``.
        is_again: Whether ``read`` can be called twice. The digest is then computed first, so that nothing is written
            if the file is there.
        folder: As in ``from_arrow``.
        function: The caller's name in messages.
    """
    from feedstock._dataset import Dataset

    place = Place(folder)
    path: Path | None = None
    if is_again:
        path = place.find(_name(tables.write(read(), None, function)))
    if path is None:
        path = place.add(lambda new: _name(tables.write(read(), new, function)))
    return Dataset(path, layout="ipc", progress=False)


def _name(digest: str) -> str:
    return f"{digest}.arrow"
