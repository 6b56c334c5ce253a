"""Results that are not in shared memory: dtypes and shapes that follow from the first items, and columns of batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feedstock._rows.columns import value_of
from feedstock._rows.spec import ItemSpec, SentSpec, Spec, TensorSpec, spec_of
from feedstock.errors import ConfigError, InternalError

# Before the elements of an array that is sent by a worker: the size of the axis that has any size.
_LENGTH_BYTES = 8


def specs_of(tried: Sequence[tuple[int, Mapping[str, Any]]], step: str) -> dict[str, Spec]:
    """Returns what all items have in common.

    Args:
        tried: Samples with the values of their items by column; at least one.
        step: The step's name in messages.

    Raises:
        ConfigError: Items have other columns or dtypes, or differ in more than one axis of a value.
    """
    (sample, first), *others = tried
    specs: dict[str, Spec] = {name: _spec(value) for name, value in first.items()}
    for other, values in others:
        if values.keys() != specs.keys():
            raise ConfigError(
                f"{step}: item {sample} has the values {sorted(specs)}, and item {other} {sorted(values)}; all items "
                "need the same structure"
            )
        for name, value in values.items():
            joined = _joined(specs[name], value)
            if joined is None:
                raise ConfigError(
                    f"{step}: value {name!r} of item {sample} is {_shown(first[name])}, and that of item {other} "
                    f"{_shown(value)}; one axis may differ, and nothing else. Convert, resize or pad it in the data set"
                )
            specs[name] = joined
    for name, spec in specs.items():
        if isinstance(spec, SentSpec) and spec.axis is not None and f"{name}_length" in specs:
            raise ConfigError(
                f"{step}: the lengths of {name!r} are the column {name}_length; rename the item's"
            )
    return specs


def _spec(value: Any) -> Spec:
    if isinstance(value, (str, bytes)):
        return SentSpec("str" if isinstance(value, str) else "bytes")
    return ItemSpec(value.dtype.name, value.shape)


def _joined(spec: Spec, value: Any) -> Spec | None:
    """Returns what also holds for ``value``; None if there is nothing."""
    other = _spec(value)
    if isinstance(spec, SentSpec) and spec.axis is None:
        return spec if spec == other else None
    if other.dtype != spec.dtype or len(other.shape) != len(spec.shape) or isinstance(other, SentSpec):
        return None
    sizes = tuple(size if size == new else None for size, new in zip(spec.shape, other.shape, strict=True))
    if None not in sizes:
        return spec
    return SentSpec(spec.dtype, sizes) if sizes.count(None) == 1 else None


def _shown(value: Any) -> str:
    return type(value).__name__ if isinstance(value, (str, bytes)) else str(spec_of(value))


def gathered(outputs: Mapping[str, Spec], sent: Mapping[int, Mapping[str, Any]], rows: int) -> dict[str, Any]:
    """Returns columns of values by row: lists of texts and bytes; of others the padded array, and ``<name>_length``."""
    columns: dict[str, Any] = {}
    for name, spec in outputs.items():
        if not isinstance(spec, SentSpec):
            continue
        values = [sent[row][name] if row in sent else spec.empty for row in range(rows)]
        if spec.axis is None:
            columns[name] = values
            continue
        lengths = np.array([value.shape[spec.axis] for value in values], np.int64)
        sizes = [int(lengths.max(initial=0)) if size is None else size for size in spec.shape]
        padded = np.zeros((rows, *sizes), spec.dtype)
        for row, value in enumerate(values):
            place: tuple[Any, ...] = (row, *(slice(size) for size in value.shape))
            padded[place] = value
        columns[name], columns[f"{name}_length"] = padded, lengths
    return columns


def with_lengths(outputs: Mapping[str, Spec]) -> dict[str, Spec]:
    """Returns all columns that batches get: next to padded values, also their lengths."""
    specs: dict[str, Spec] = {}
    for name, spec in outputs.items():
        specs[name] = spec
        if isinstance(spec, SentSpec) and spec.axis is not None:
            specs[f"{name}_length"] = TensorSpec("int64", ())
    return specs


def without_lengths(outputs: Mapping[str, Spec]) -> dict[str, Spec]:
    """Returns what ``with_lengths`` was given."""
    padded = [name for name, spec in outputs.items() if isinstance(spec, SentSpec) and spec.axis is not None]
    lengths = {f"{name}_length" for name in padded}
    return {name: spec for name, spec in outputs.items() if name not in lengths}


def packed(name: str, spec: SentSpec, results: Mapping[str, Any]) -> list[bytes]:
    """Returns a column of ``gathered`` as bytes of each row; see ``unpacked``."""
    if spec.axis is None:
        texts = results[name]
        return [text.encode("utf-8", "surrogatepass") for text in texts] if spec.dtype == "str" else texts
    rows = zip(results[name], results[f"{name}_length"].tolist(), strict=True)
    return [
        length.to_bytes(_LENGTH_BYTES, "little") + value_of(value, (spec.axis, length)).tobytes()
        for value, length in rows
    ]


def unpacked(name: str, spec: SentSpec, data: bytes) -> Any:
    """Returns a row's value. No bytes are a row without one.

    Raises:
        InternalError: The bytes are not what ``packed`` returns.
    """
    if spec.axis is None:
        return data.decode("utf-8", "surrogatepass") if spec.dtype == "str" else data
    if not data:
        return spec.empty
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    sizes = [length if size is None else size for size in spec.shape]
    needed = _LENGTH_BYTES + math.prod(sizes) * np.dtype(spec.dtype).itemsize
    if len(data) != needed:
        raise InternalError(f"a worker sent {len(data)} bytes of column {name!r}, not {needed}")
    return np.ndarray(sizes, spec.dtype, data, _LENGTH_BYTES)


def lengths_of(
    outputs: Mapping[str, Spec], results: Mapping[str, Any]
) -> dict[str, tuple[int, Sequence[int]]]:
    """Returns axis and lengths of padded columns, as ``Rows.lengths`` has them."""
    return {
        name: (spec.axis, results[f"{name}_length"].tolist())
        for name, spec in outputs.items()
        if isinstance(spec, SentSpec) and spec.axis is not None
    }
