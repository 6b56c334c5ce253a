"""Dtypes and shapes of the columns that a function of rows returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from feedstock._check import whole
from feedstock.errors import ConfigError

# Flags, integers, floats and complex numbers: what numpy and torch both have.
_KINDS = "biufc"

# What a Python number may become without a conversion by the function: ``0.5`` in a float32 column, ``3`` in all.
_FROM_PYTHON = {bool: "b", int: "iufc", float: "fc", complex: "c"}


#: Columns of every batch that are not the sample's.
RESERVED: Final = ("sample_ids", "valid")


class ResultError(Exception):
    """A function's result does not have the declared columns. The message is one clause without a subject."""


@dataclass(frozen=True)
class TensorSpec:
    """The dtype and the shape of one sample's value. Made by ``fs.tensor``."""

    dtype: str
    shape: tuple[int, ...]

    #: How messages about another dtype or shape name this one, and what to do.
    STATED: ClassVar[str] = "outputs state"
    ADVICE: ClassVar[str] = "convert it in the function, or change outputs"

    @property
    def row_bytes(self) -> int:
        """Bytes of one value."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


_FIRST_ITEMS: Final = "the first items have"


@dataclass(frozen=True)
class ItemSpec(TensorSpec):
    """A value of a data set's items that has one dtype and shape."""

    STATED: ClassVar[str] = _FIRST_ITEMS
    ADVICE: ClassVar[str] = "all items need one dtype and shape; convert, resize or pad it in the data set"


@dataclass(frozen=True)
class SentSpec:
    """A value of a data set's items that is sent with the answer, since its size is not known before.

    Args:
        dtype: ``"str"``, ``"bytes"``, or the dtype of arrays.
        shape: The sizes of arrays; None for the axis that has any size. Empty for texts and bytes.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()

    @property
    def axis(self) -> int | None:
        """The axis of any size; None for texts and bytes."""
        return self.shape.index(None) if self.shape else None

    @property
    def empty(self) -> Any:
        """The value of a row without one."""
        if self.axis is None:
            return "" if self.dtype == "str" else b""
        return np.zeros([size or 0 for size in self.shape], self.dtype)

    def checked(self, name: str, value: Any) -> Any:
        """Returns the value to send; ResultError if it does not have this dtype and shape."""
        if self.axis is None:
            if not isinstance(value, str if self.dtype == "str" else bytes):
                raise ResultError(
                    f"returned {type(value).__name__} for column {name!r}, and {_FIRST_ITEMS} {self.dtype}"
                )
            return value
        array = _array(name, value)
        is_alike = array.dtype == self.dtype and array.ndim == len(self.shape)
        if not is_alike or any(s not in (None, t) for s, t in zip(self.shape, array.shape, strict=True)):
            raise ResultError(f"returned column {name!r} as {spec_of(array)}, and {_FIRST_ITEMS} {self}")
        return array

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.dtype} [{sizes}]" if self.shape else self.dtype


#: What a stage knows of its results before it runs.
Spec = TensorSpec | SentSpec


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
    if name in RESERVED:
        raise ConfigError(f"map_rows cannot return the column {name!r}, which the loader sets")


def arrays_of(result: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Returns a function's first result as arrays, from which dtypes and shapes follow."""
    if not isinstance(result, Mapping):
        raise ResultError(f"returned {type(result).__name__}, not a mapping of columns")
    if not result:
        raise ResultError("returned no columns")
    return {_name(name): _array(str(name), value) for name, value in result.items()}


def values_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of an item by column, as arrays, texts and bytes."""
    return {
        name: value if isinstance(value, (str, bytes)) else _array(name, value)
        for name, value in item.items()
    }


def spec_of(array: np.ndarray[Any, Any]) -> TensorSpec:
    """Returns the dtype and shape of an array."""
    return TensorSpec(array.dtype.name, array.shape)


def store(
    result: Any,
    outputs: Mapping[str, Spec],
    rows: Mapping[str, np.ndarray[Any, Any]],
    sent: dict[str, Any],
) -> None:
    """Writes a function's result to the row of each output, and to ``sent`` what no row has.

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
        if isinstance(spec, SentSpec):
            sent[name] = spec.checked(name, result[name])
        else:
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
            f"returned column {name!r} as {spec_of(array)}, and {spec.STATED} {spec}; {spec.ADVICE}"
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
