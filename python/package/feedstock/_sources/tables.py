"""Tables as Arrow IPC files whose bytes depend on the rows alone, not on how a table holds them.

Batches are cut again, and their arrays copied: slices, chunks, offsets and what is stored under nulls leave no trace.
Cost: two copies, and a digest.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from feedstock.errors import ConfigError

#: Bytes of a record batch in the files: the size of one read of ``Dataset(block_bytes=…)``.
RECORD_BATCH_BYTES = 4 * 2**20

_LEAST_ROWS, _MOST_ROWS = 1024, 65_536

_DIGEST_BYTES = 16

_PART_BYTES = 256 * 2**20


def pyarrow_for(function: str) -> Any:
    """Returns the module pyarrow; ConfigError if it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            f"{function} needs pyarrow, which is not installed: pip install 'feedstock[arrow]'"
        ) from error
    return pyarrow


def numbers(values: np.ndarray[Any, Any], pa: Any) -> Any:
    """Returns the pyarrow array of a contiguous array's numbers. ``pyarrow.array`` imports pandas: 0.2 s."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def write(reader: Any, path: Any, function: str) -> str:
    """Writes the rows of a ``pyarrow.RecordBatchReader`` to a file, and returns the digest of its bytes.

    Args:
        reader: The rows.
        path: The file; None: only the digest is computed.
        function: The caller's name in messages.

    Raises:
        ConfigError: There are no rows, or a column has a type that files cannot hold.
    """
    pa = pyarrow_for(function)
    schema = _plain_schema(reader.schema, pa)
    with open(path, "wb") if path is not None else io.BytesIO() as file:
        sink = _Digested(file if path is not None else None)
        rows = 0
        with pa.ipc.new_file(pa.PythonFile(sink, "w"), schema) as writer:
            for batch in _cut(_plain(reader, schema, pa), pa):
                writer.write_batch(batch)
                rows += batch.num_rows
    if rows == 0:
        raise ConfigError(f"{function} got no rows: the data set is empty")
    return sink.digest.hexdigest()


class _Digested(io.RawIOBase):
    """A stream that is hashed, and written to ``file`` unless that is None."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        self.digest.update(data)
        if self._file is not None:
            self._file.write(data)
        size = memoryview(data).nbytes
        self._at += size
        return size


def _plain_schema(schema: Any, pa: Any) -> Any:
    """Returns the schema of the file. Of its metadata, it keeps the features of Hugging Face, which name classes."""
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key == b"huggingface"}
    fields = [pa.field(field.name, plain_type(field.type, pa), field.nullable) for field in schema]
    return pa.schema(fields, metadata or None)


def plain_type(kind: Any, pa: Any) -> Any:
    """Returns a type without dictionaries, views, extensions and 64-bit offsets: batches are small."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type, pa)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type, pa)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([pa.field(f.name, plain_type(f.type, pa), f.nullable) for f in kind])
    if types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type, pa), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type, pa))
    return kind


def _plain(reader: Any, schema: Any, pa: Any) -> Iterator[Any]:
    """Yields the rows in the types of the file, as tables of at most 65,536 rows and about 256 MiB."""
    for batch in reader:
        most = max(1, min(_MOST_ROWS, batch.num_rows * _PART_BYTES // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, most):
            part = batch.slice(start, most)
            columns = [_cast(array, field, pa) for array, field in zip(part.columns, schema, strict=True)]
            yield pa.table(columns, schema=schema)


def _cast(array: Any, field: Any, pa: Any) -> Any:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    elif pa.types.is_run_end_encoded(array.type):
        from pyarrow.compute import run_end_decode

        array = run_end_decode(array)
    types, kind = pa.types, array.type
    try:
        if types.is_large_binary(kind) or types.is_large_string(kind) or types.is_large_list(kind):
            # A copy, whose offsets begin at 0: a cast to offsets of 32 bits refuses a slice that ends above 2 GiB.
            array = array.take(numbers(np.arange(len(array)), pa))
        return array if array.type == field.type else array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(f"column {field.name!r} of type {array.type} cannot be stored: {error}") from error


def _cut(parts: Iterable[Any], pa: Any) -> Iterator[Any]:
    """Yields batches of a number of rows that follows from the first 1,024 rows."""
    held: list[Any] = []
    rows = 0
    size: int | None = None
    for part in parts:
        held.append(part)
        rows += part.num_rows
        if size is None and rows >= _LEAST_ROWS:
            size = _rows_of(_copied(pa.concat_tables(held).slice(0, _LEAST_ROWS), pa), pa)
        if size is None or rows < size:
            continue
        joined = pa.concat_tables(held)
        ends = rows - rows % size
        for start in range(0, ends, size):
            yield _copied(joined.slice(start, size), pa)
        held, rows = [joined.slice(ends)], rows - ends
    if rows > 0:
        rest = pa.concat_tables(held)
        size = size or _rows_of(_copied(rest, pa), pa)
        for start in range(0, rows, size):
            yield _copied(rest.slice(start, size), pa)


def _copied(table: Any, pa: Any) -> Any:
    """Returns rows of a table as one batch of new arrays."""
    taken = table.take(numbers(np.arange(table.num_rows), pa)).combine_chunks()
    (batch,) = taken.to_batches()
    return batch


def _rows_of(batch: Any, pa: Any) -> int:
    """Returns the rows of a batch of 4 MiB, a power of two, if all rows are like those of ``batch``."""
    size = max(1, pa.ipc.get_record_batch_size(batch) // batch.num_rows)
    rows = max(1, min(_MOST_ROWS, RECORD_BATCH_BYTES // size))
    return 1 << (int(rows).bit_length() - 1)
