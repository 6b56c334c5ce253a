"""Conversions of batches: to tensors, arrays and tables, and to a device.

Results of Python functions that are not a ``Batch`` are passed on unchanged, except for tensors that are moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import Batch, ConfigError

if TYPE_CHECKING:
    import torch

#: Columns that ``ids=True`` adds; feedstock sets their types.
_ADDED = frozenset(("sample_ids", "valid"))


class Batches:
    """An iterable that calls ``start`` at every ``iter()``, as the result of Ray's ``iter_batches`` does."""

    def __init__(self, start: Callable[[], Iterator[Any]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        return self._start()


def unchanged(batch: Any) -> Any:
    """Returns the batch."""
    return batch


def numpy_columns(batch: Any) -> Any:
    """Returns a dict from column to array, or to a list for strings, bytes and nested columns."""
    return batch.numpy(ids=True) if isinstance(batch, Batch) else batch


def torch_columns(batch: Any) -> Any:
    """Returns a dict from column to tensor, or to a list for columns without a tensor type."""
    return batch.torch(ids=True) if isinstance(batch, Batch) else batch


def arrow_table(batch: Any) -> Any:
    """Returns a ``pyarrow.Table``, without a copy."""
    import pyarrow

    if not isinstance(batch, Batch):
        raise ConfigError(
            f"Python functions returned {type(batch).__name__}, which is not a table; use batch_format='numpy'"
        )
    return pyarrow.Table.from_batches([pyarrow.record_batch(batch)])


def pandas_frame(batch: Any) -> Any:
    """Returns a ``pandas.DataFrame``; rows of tensors become arrays in an object column."""
    return arrow_table(batch).to_pandas()


CONVERT: dict[str, Callable[[Any], Any]] = {
    "batch": unchanged,
    "numpy": numpy_columns,
    "torch": torch_columns,
}

FORMATS: dict[str, Callable[[Any], Any]] = {
    "default": numpy_columns,
    "numpy": numpy_columns,
    "pandas": pandas_frame,
    "pyarrow": arrow_table,
}


def torch_with(dtypes: torch.dtype | Mapping[str, torch.dtype] | None) -> Callable[[Any], Any]:
    """Returns :func:`torch_columns` with all or some of the pipeline's columns converted to other dtypes."""
    if dtypes is None:
        return torch_columns
    by_column = dtypes if isinstance(dtypes, Mapping) else None

    def convert(batch: Any) -> Any:
        columns = torch_columns(batch)
        if not isinstance(columns, dict):
            raise ConfigError(
                f"dtypes needs a dict of columns, and map_python returned {type(columns).__name__}; convert there"
            )
        for name in (by_column or {}).keys() - columns.keys():
            raise ConfigError(f"dtypes must name columns of the batch ({', '.join(columns)}); got {name!r}")
        for name, value in columns.items():
            dtype = by_column.get(name) if by_column is not None else None if name in _ADDED else dtypes
            if dtype is not None and hasattr(value, "to"):
                columns[name] = value.to(dtype)
        return columns

    return convert


def collated(collate_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns ``collate_fn`` applied to the batch in the form that its class of Ray's states; default: arrays."""
    from ray.data.collate_fn import ArrowBatchCollateFn, PandasBatchCollateFn

    convert = numpy_columns
    if isinstance(collate_fn, ArrowBatchCollateFn):
        convert = arrow_table
    elif isinstance(collate_fn, PandasBatchCollateFn):
        convert = pandas_frame
    return lambda batch: collate_fn(convert(batch))


class Move:
    """Moves the tensors of dicts, lists and tuples to a device; returns everything else unchanged."""

    def __init__(self, device: str | torch.device, pin_memory: bool) -> None:
        import torch

        self._device = torch.device(device)
        self._pin = pin_memory and torch.cuda.is_available()
        self._tensor = torch.Tensor

    def __call__(self, value: Any) -> Any:
        if isinstance(value, self._tensor):
            if value.device == self._device:
                return value
            pin = self._pin and value.device.type == "cpu"
            value = value.pin_memory() if pin else value
            # A copy from a slot must end before the slot is returned; torch tracks copies of the memory that it owns.
            return value.to(self._device, non_blocking=pin)
        if isinstance(value, dict):
            return {name: self(part) for name, part in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self, value))
        if isinstance(value, list | tuple) and any(
            isinstance(part, self._tensor | dict | list | tuple) for part in value
        ):
            return type(value)(map(self, value))
        return value  # also a list of strings


def train_device() -> torch.device | None:
    """Returns the device that Ray Train gave this worker; None outside of a worker."""
    import sys

    if "ray.train" not in sys.modules:
        return None
    from ray.train.torch import get_device
    from ray.train.utils import _in_ray_train_worker

    return get_device() if _in_ray_train_worker() else None
