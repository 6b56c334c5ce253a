"""Where the columns of a batch are in an area of shared memory."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedstock._rows.columns import Inputs, value_of
from feedstock._rows.shared import Area, Areas
from feedstock._rows.spec import Spec, TensorSpec

_ALIGNMENT = 64  # a cache line, so that two processes do not write to one


@dataclass(frozen=True)
class Column:
    """An array of all rows."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # rows first
    offset: int


@dataclass(frozen=True)
class Layout:
    """The arrays in an area, and by row where its pickle of other values begins and ends."""

    columns: tuple[Column, ...]
    pickles: tuple[int, ...] | None  # rows + 1 offsets

    def arrays(self, memory: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Returns views of the columns in ``memory``."""
        return {
            column.name: np.ndarray(column.shape, column.dtype, memory, column.offset)
            for column in self.columns
        }


def _columns(described: Sequence[tuple[str, str, tuple[int, ...]]]) -> tuple[tuple[Column, ...], int]:
    columns, end = [], 0
    for name, dtype, shape in described:
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        columns.append(Column(name, dtype, shape, offset))
        end = offset + int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return tuple(columns), end


def write_inputs(inputs: Inputs, rows: int, areas: Areas) -> tuple[Area, Layout]:
    """Copies what functions get into an area."""
    described = [(name, array.dtype.str, array.shape) for name, array in inputs.arrays.items()]
    columns, end = _columns(described)
    pickles: list[bytes] = []
    if inputs.lists or inputs.lengths:
        pickles = [
            pickle.dumps((inputs.listed_of(row), inputs.lengths_of(row)), protocol=5) for row in range(rows)
        ]
    area = areas.take(end + sum(map(len, pickles)))
    for column in columns:
        np.copyto(area.array(column.offset, column.dtype, column.shape), inputs.arrays[column.name])
    if not pickles:
        return area, Layout(columns, None)
    offsets = [end]
    for body in pickles:
        area.memory[offsets[-1] : offsets[-1] + len(body)] = body
        offsets.append(offsets[-1] + len(body))
    return area, Layout(columns, tuple(offsets))


def read_row(
    layout: Layout, arrays: Mapping[str, np.ndarray[Any, Any]], memory: Any, row: int
) -> dict[str, Any]:
    """Returns a row's values as ``Inputs.row`` does, from an area with these ``arrays``."""
    listed: dict[str, Any] = {}
    lengths: dict[str, tuple[int, int]] = {}
    if layout.pickles is not None:
        start, end = layout.pickles[row : row + 2]
        listed, lengths = pickle.loads(memoryview(memory)[start:end])
    return {**{name: value_of(array[row], lengths.get(name)) for name, array in arrays.items()}, **listed}


def layout_of_results(outputs: Mapping[str, Spec], rows: int) -> tuple[Layout, int]:
    """Returns the layout of a batch of results, and its bytes."""
    columns, end = _columns(
        [(name, s.dtype, (rows, *s.shape)) for name, s in outputs.items() if isinstance(s, TensorSpec)]
    )
    return Layout(columns, None), end
