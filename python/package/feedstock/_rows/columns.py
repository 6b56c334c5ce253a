"""A batch on its way through functions of rows, and the values of one row."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from feedstock._device import import_torch
from feedstock._rows.spec import RESERVED
from feedstock.errors import ConfigError

if TYPE_CHECKING:
    from feedstock import _feedstock


@dataclass
class Inputs:
    """The columns that a function gets, of a whole batch."""

    arrays: dict[str, np.ndarray[Any, Any]]
    lists: dict[str, Sequence[Any]]
    #: Of columns whose rows are padded: the axis of a row that is, and the rows' lengths.
    lengths: dict[str, tuple[int, Sequence[int]]]

    def lengths_of(self, row: int) -> dict[str, tuple[int, int]]:
        """Returns axis and length of the padded columns of a row."""
        return {name: (axis, lengths[row]) for name, (axis, lengths) in self.lengths.items()}

    def only(self, rows: Sequence[int]) -> Inputs:
        """Returns those of these rows."""
        index = np.asarray(rows, np.int64)
        return Inputs(
            {name: array[index] for name, array in self.arrays.items()},
            {name: [values[row] for row in rows] for name, values in self.lists.items()},
            {name: (axis, [of[row] for row in rows]) for name, (axis, of) in self.lengths.items()},
        )

    def listed_of(self, row: int) -> dict[str, Any]:
        """Returns a row's texts, bytes and nested values."""
        return {name: values[row] for name, values in self.lists.items()}

    def row(self, row: int) -> dict[str, Any]:
        """Returns a row's values, which the function may change: arrays are copies, and without padding."""
        lengths = self.lengths_of(row)
        values = {name: value_of(array[row], lengths.get(name)) for name, array in self.arrays.items()}
        return {**values, **self.listed_of(row)}


def value_of(value: Any, length: tuple[int, int] | None) -> Any:
    """Returns a copy of one row's array without its padding; a scalar of NumPy unchanged."""
    if length is not None:
        axis, count = length
        value = value[(slice(None),) * axis + (slice(count),)]
    return value.copy() if isinstance(value, np.ndarray) else value


@dataclass
class Rows:
    """A batch as the loader yields it, and what functions need in addition."""

    columns: dict[str, Any]
    epoch: int
    position: int
    ids: Sequence[int]
    lengths: dict[str, tuple[int, Sequence[int]]] = field(default_factory=dict)
    #: Rows that have failed, in the library or in a function. No further function gets them; see ``substituted``.
    bad: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, batch: _feedstock.Batch, output: str) -> Rows:
        """Returns a batch in the form ``output``, "numpy" or "torch". Columns are views of the batch."""
        columns = batch.torch(ids=True) if output == "torch" else batch.numpy(ids=True)
        rows = cls(columns, batch.epoch, batch.position, batch.sample_ids.tolist())
        rows.bad.update(batch.substitutes())
        for name, column in columns.items():
            if name in RESERVED or isinstance(column, list):
                continue
            tensor = batch[name]
            if tensor.lengths is not None:
                if tensor.padded_axis is None:
                    raise ConfigError(
                        f"map_rows: {name!r} has lists of images, which functions of rows do not get; use map_python, "
                        "which gets whole batches"
                    )
                rows.lengths[name] = (tensor.padded_axis - 1, tensor.lengths)
        return rows

    @property
    def place(self) -> tuple[int, int]:
        """(epoch, position), as the loader names batches."""
        return self.epoch, self.position

    def inputs(self, names: Sequence[str] | None, step: str) -> Inputs:
        """Returns the columns ``names``, or all."""
        chosen = [name for name in self.columns if name not in RESERVED] if names is None else names
        inputs = Inputs({}, {}, {})
        for name in chosen:
            if name not in self.columns:
                raise ConfigError(
                    f"inputs of {step} must be columns of the batch ({', '.join(self.columns)}); got {name!r}"
                )
            column = self.columns[name]
            if isinstance(column, np.ndarray):
                inputs.arrays[name] = column
            elif hasattr(column, "numpy"):
                inputs.arrays[name] = _numpy(column, name, step)
            else:
                inputs.lists[name] = column
            if name in self.lengths:
                inputs.lengths[name] = self.lengths[name]
        return inputs

    def replace(self, results: Mapping[str, Any], output: str) -> None:
        """Adds result columns, arrays and lists, or puts them in the place of columns with their names."""
        for name, column in results.items():
            is_tensor = output == "torch" and isinstance(column, np.ndarray)
            self.columns[name] = import_torch().from_numpy(column) if is_tensor else column
            self.lengths.pop(name, None)

    def only(self, rows: Sequence[int]) -> Rows:
        """Returns a batch of these rows; its arrays are NumPy's."""
        index = np.asarray(rows, np.int64)
        columns = {
            name: column[index] if isinstance(column, np.ndarray) else [column[row] for row in rows]
            for name, column in self.columns.items()
        }
        lengths: dict[str, tuple[int, Sequence[int]]] = {
            name: (axis, [of[row] for row in rows]) for name, (axis, of) in self.lengths.items()
        }
        return Rows(columns, self.epoch, self.position, [self.ids[row] for row in rows], lengths)

    def substituted(self) -> Rows:
        """Gives rows that have failed the content of their nearest good row, if there is one, and returns the batch."""
        sources = nearest_good(len(self.ids), self.bad) if self.bad else None
        if sources is not None:
            self.substitute(sources)
        return self

    def substitute(self, sources: Sequence[int]) -> None:
        """Gives every row the content of the row that ``sources`` names. Ids stay; new arrays hold the columns."""
        index = np.asarray(sources, np.int64)
        for name, column in self.columns.items():
            if name in RESERVED:
                continue
            if isinstance(column, np.ndarray):
                self.columns[name] = column[index]
            elif hasattr(column, "numpy"):
                self.columns[name] = column[import_torch().from_numpy(index)]
            else:
                self.columns[name] = [column[row] for row in sources]
        for name, (axis, lengths) in self.lengths.items():
            self.lengths[name] = (axis, [lengths[row] for row in sources])

    def invalidate(self, rows: Sequence[int]) -> list[int]:
        """Marks rows invalid and returns those that were valid."""
        valid = self.columns["valid"]
        changed = valid.copy() if isinstance(valid, np.ndarray) else valid.clone()
        were = [row for row in rows if bool(valid[row])]
        changed[list(rows)] = False
        self.columns["valid"] = changed
        return were


def _numpy(tensor: Any, name: str, step: str) -> np.ndarray[Any, Any]:
    try:
        array: np.ndarray[Any, Any] = tensor.numpy()
    except TypeError as error:  # bfloat16
        raise ConfigError(
            f"{step} cannot get column {name!r}, whose dtype {tensor.dtype} NumPy lacks; leave it out of inputs="
        ) from error
    return array


def nearest_good(rows: int, bad: Container[int]) -> list[int] | None:
    """Returns for each row itself or, if it is bad, the nearest good row; None if no row is good."""
    good = [row for row in range(rows) if row not in bad]
    if not good:
        return None
    return [
        min(good, key=lambda other, row=row: abs(other - row)) if row in bad else row  # type: ignore[misc]
        for row in range(rows)
    ]


def spread(array: np.ndarray[Any, Any], places: Sequence[int], rows: int) -> np.ndarray[Any, Any]:
    """Returns an array of ``rows`` rows: those of ``array`` at ``places``, and zeros."""
    spread = np.zeros((rows, *array.shape[1:]), array.dtype)
    spread[places] = array
    return spread
