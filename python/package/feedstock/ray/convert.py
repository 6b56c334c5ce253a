"""From a batch to what a training function asks for: tensors, arrays, tables, on a device.

What ``map_python`` makes is the user's own: it passes as it is, but for tensors that are to be moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import Batch, ConfigError

if TYPE_CHECKING:
    import torch

#: Added by ``ids=True``; their types are feedstock's, not the data's.
_ADDED = frozenset(("sample_ids", "valid"))


class Batches:
    """An iterable whose every ``iter()`` starts anew, as Ray's ``iter_batches`` returns."""

    def __init__(self, start: Callable[[], Iterator[Any]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        return self._start()


def unchanged(batch: Any) -> Any:
    return batch


def numpy_columns(batch: Any) -> Any:
    """A dictionary from column to array, or to a list for strings, bytes and nested columns."""
    return batch.numpy(ids=True) if isinstance(batch, Batch) else batch


def torch_columns(batch: Any) -> Any:
    """A dictionary from column to tensor, or to a list for what has no tensor type."""
    return batch.torch(ids=True) if isinstance(batch, Batch) else batch


def arrow_table(batch: Any) -> Any:
    """A ``pyarrow.Table``, without a copy."""
    import pyarrow

    if not isinstance(batch, Batch):
        raise ConfigError(
            f"map_python made {type(batch).__name__}, which is no table: take batch_format='numpy'"
        )
    return pyarrow.Table.from_batches([pyarrow.record_batch(batch)])


def pandas_frame(batch: Any) -> Any:
    """A ``pandas.DataFrame``; rows of tensors become arrays in an object column."""
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
    """:func:`torch_columns`, with all or some of the pipeline's columns in other types."""
    if dtypes is None:
        return torch_columns
    by_column = dtypes if isinstance(dtypes, Mapping) else None

    def convert(batch: Any) -> Any:
        columns = torch_columns(batch)
        if not isinstance(columns, dict):
            raise ConfigError(
                f"map_python made {type(columns).__name__}: convert its types there, not by dtypes"
            )
        for name in (by_column or {}).keys() - columns.keys():
            raise ConfigError(f"dtypes names {name!r}, but the batch has {', '.join(columns)}")
        for name, value in columns.items():
            wanted = by_column.get(name) if by_column is not None else None if name in _ADDED else dtypes
            if wanted is not None and hasattr(value, "to"):
                columns[name] = value.to(wanted)
        return columns

    return convert


def collated(collate_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``collate_fn`` on the batch in the form that it takes, by Ray's classes."""
    from ray.data.collate_fn import ArrowBatchCollateFn, PandasBatchCollateFn

    convert = numpy_columns
    if isinstance(collate_fn, ArrowBatchCollateFn):
        convert = arrow_table
    elif isinstance(collate_fn, PandasBatchCollateFn):
        convert = pandas_frame
    return lambda batch: collate_fn(convert(batch))


class Move:
    """Moves the tensors of dictionaries, lists and tuples to a device; leaves everything else."""

    def __init__(self, device: str | torch.device, pin_memory: bool) -> None:
        import torch

        if device == "auto":
            device = _train_device() or "cpu"
        self._device = torch.device(device)
        self._pin = pin_memory and torch.cuda.is_available()
        self._tensor = torch.Tensor

    def __call__(self, value: Any) -> Any:
        if isinstance(value, self._tensor):
            value = value.pin_memory() if self._pin else value
            # from memory of a slot the copy must be over before the slot is given back; torch looks after its own
            return value.to(self._device, non_blocking=self._pin)
        if isinstance(value, dict):
            return {name: self(part) for name, part in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self, value))
        if isinstance(value, list | tuple) and any(
            isinstance(part, self._tensor | dict | list | tuple) for part in value
        ):
            return type(value)(map(self, value))
        return value  # a list of strings is not walked


def _train_device() -> torch.device | None:
    """The device that Ray Train gave this worker; none outside one."""
    import sys

    if "ray.train" not in sys.modules:
        return None
    from ray.train.torch import get_device
    from ray.train.utils import _in_ray_train_worker

    return get_device() if _in_ray_train_worker() else None
