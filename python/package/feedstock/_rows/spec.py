"""Dtypes and shapes of the columns that a function of rows returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedstock._check import whole
from feedstock.errors import ConfigError

# Flags, integers, floats and complex numbers: what numpy and torch both have.
_KINDS = "biufc"

# What a Python number may become without a conversion by the function: ``0.5`` in a float32 column, ``3`` in all.
_FROM_PYTHON = {bool: "b", int: "iufc", float: "fc", complex: "c"}


class ResultError(Exception):
    """A function's result does not have the declared columns. The message is one clause without a subject."""


@dataclass(frozen=True)
class TensorSpec:
    """The dtype and the shape of one sample's value. Made by ``fs.tensor``."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one value."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def tensor(dtype: Any, shape: int | Iterable[int] = ()) -> TensorSpec:
    """Declares dtype and shape of a column that a function of ``Pipeline.map_rows`` returns.

    Args:
        dtype: A dtype of NumPy or torch, or its name: ``"float32"``, ``np.uint8``, ``torch.int64``. Flags, integers,
            floats and complex numbers; not ``bfloat16``, which NumPy lacks.
        shape: The shape of one sample's value; default ``()``, a number.

    Raises:
        ConfigError: NumPy has no such dtype, or a size is not valid.

    Example:
        >>> fs.tensor("float32", (3, 224, 224))
        TensorSpec(dtype='float32', shape=(3, 224, 224))
    """
    name = str(dtype).removeprefix("torch.") if type(dtype).__module__.startswith("torch") else dtype
    try:
        found = np.dtype(name)
    except TypeError:
        found = None
    if found is None or found.kind not in _KINDS:
        raise ConfigError(f"dtype must be a dtype of numbers or flags that NumPy has; got {dtype!r}")
    sizes = shape if isinstance(shape, Iterable) and not isinstance(shape, str) else (shape,)
    return TensorSpec(found.name, tuple(whole("a size of shape", size) for size in sizes))


def checked_outputs(outputs: Any) -> dict[str, TensorSpec]:
    """Returns declared outputs if they are a mapping from names to specs."""
    if not isinstance(outputs, Mapping) or not outputs:
        raise ConfigError(
            f'outputs must be a dict such as {{"x": fs.tensor("float32", (3,))}}; got {outputs!r}'
        )
    for name, spec in outputs.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"names of outputs must be non-empty strings; got {name!r}")
        if not isinstance(spec, TensorSpec):
            raise ConfigError(f"outputs[{name!r}] must be fs.tensor(dtype, shape); got {spec!r}")
        check_name(name)
    return dict(outputs)


def check_name(name: str) -> None:
    """Raises ConfigError for names that every batch has."""
    if name in ("sample_ids", "valid"):
        raise ConfigError(f"map_rows cannot return the column {name!r}, which the loader sets")


def arrays_of(result: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Returns a function's first result as arrays, from which dtypes and shapes follow."""
    if not isinstance(result, Mapping):
        raise ResultError(f"returned {type(result).__name__}, not a mapping of columns")
    if not result:
        raise ResultError("returned no columns")
    return {_name(name): _array(str(name), value) for name, value in result.items()}


def spec_of(array: np.ndarray[Any, Any]) -> TensorSpec:
    """Returns the dtype and shape of an array."""
    return TensorSpec(array.dtype.name, array.shape)


def store(result: Any, outputs: Mapping[str, TensorSpec], rows: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Writes a function's result to the row of each output.

    Raises:
        ResultError: It is not a mapping of exactly the declared columns, dtypes and shapes. Rows may be written then.
    """
    if not isinstance(result, Mapping):
        raise ResultError(f"returned {type(result).__name__}, not a mapping of columns")
    if result.keys() != outputs.keys():
        raise ResultError(
            f"returned the columns {sorted(map(str, result))}, and outputs are {sorted(outputs)}"
        )
    for name, spec in outputs.items():
        rows[name][...] = _converted(name, result[name], spec)


def _converted(name: str, value: Any, spec: TensorSpec) -> np.ndarray[Any, Any]:
    dtype = np.dtype(spec.dtype)
    if dtype.kind in _FROM_PYTHON.get(type(value), ""):
        try:
            array = np.asarray(value, dtype)
        except OverflowError as error:
            raise ResultError(
                f"returned {value} for column {name!r}, which {spec.dtype} cannot hold"
            ) from error
    else:
        array = _array(name, value)
    if array.dtype != dtype or array.shape != spec.shape:
        raise ResultError(
            f"returned column {name!r} as {spec_of(array)}, and outputs state {spec}; convert it in the function, or "
            "change outputs"
        )
    return array


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(value)
    except Exception as error:
        raise ResultError(
            f"returned {type(value).__name__} for column {name!r}, which is not an array: {error}"
        ) from error
    if array.dtype.kind not in _KINDS:
        raise ResultError(
            f"returned {type(value).__name__} (dtype {array.dtype}) for column {name!r}; columns of numbers or flags "
            "can be returned"
        )
    return array


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise ResultError(f"returned a column named {name!r}; names must be non-empty strings")
    return name
