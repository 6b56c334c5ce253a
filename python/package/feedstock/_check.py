"""Checks of arguments. Their messages have the form "NAME must be …; got …"."""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from feedstock.errors import ConfigError

_MOST = 2**63 - 1


def whole(name: str, value: Any, least: int = 0) -> int:
    """Returns ``value`` as an int if it is an integer of any type, numpy's included, and at least ``least``."""
    number: int | None = None
    with contextlib.suppress(TypeError):
        number = operator.index(value)
    if number is None or not least <= number <= _MOST:
        raise ConfigError(f"{name} must be an integer >= {least}{_bound(number)}; got {value!r}")
    return number


def _bound(number: int | None) -> str:
    return " and < 2**63" if number is not None and number > _MOST else ""


def real(name: str, value: Any, bounds: str, holds: Callable[[float], bool]) -> float:
    """Returns ``value`` as a float if it is a number for which ``holds``; ``bounds`` describes that in the error."""
    if not isinstance(value, str):
        with contextlib.suppress(TypeError, ValueError):
            if holds(number := float(value)):
                return number
    raise ConfigError(f"{name} must be {bounds}; got {value!r}")


def text(name: str, value: Any) -> str:
    """Returns ``value`` if it is a string."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a string; got {value!r}")
    return value


def sample_ids(name: str, value: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Returns integers >= 0 as a sorted little-endian array. ``value`` is an iterable, an array or a tensor of them."""
    if hasattr(value, "__array__") or isinstance(value, range):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
        ids = value
        if len(ids) > 0:
            whole(f"each of {name}", int(ids.min()))
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        ids = np.array([whole(f"each of {name}", one) for one in value], dtype=np.uint64)
    else:
        raise ConfigError(f"{name} must be a list of integers >= 0; got {value!r}")
    return np.sort(ids.astype("<u8"))


def column_names(name: str, value: Any) -> list[str]:
    """Returns ``value`` as a list if it is a list, or another iterable except a string, of strings."""
    found = list(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else None
    if found is None or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{name} must be a list of names; got {value!r}")
    return found


def number(name: str, value: Any) -> float:
    """Returns ``value`` as a float if it is a number."""
    return real(name, value, "a number", lambda _: True)


def positive(name: str, value: Any) -> float:
    """Returns ``value`` as a float if it is a finite number above 0."""
    return real(name, value, "a finite number > 0", lambda number: 0.0 < number < math.inf)


def seconds(name: str, value: Any) -> float:
    """Returns ``value`` as a float if it is a duration in seconds."""
    return real(name, value, "a number of seconds >= 0 and < 2**63", lambda number: 0.0 <= number < 2**63)


def one_of(name: str, value: Any, choices: Collection[Any]) -> None:
    """Checks that ``value`` is one of ``choices``."""
    if value not in choices:
        *others, last = map(repr, choices)
        raise ConfigError(f"{name} must be {', '.join(others)} or {last}; got {value!r}")


def whole_or_none(name: str, value: Any, least: int = 0) -> int | None:
    """Like ``whole``; returns None for None, which stands for the default."""
    return None if value is None else whole(name, value, least)


def folders(name: str, value: Any) -> list[str]:
    """Returns one folder or several as a list; paths are resolved here, because another process may use them."""
    given = [value] if isinstance(value, str | os.PathLike) else value
    if not isinstance(given, Collection) or not all(
        isinstance(folder, str | os.PathLike) for folder in given
    ):
        raise ConfigError(f"{name} must be a folder or a list of folders; got {value!r}")
    texts = [os.fspath(folder) for folder in given]
    return [text if text == "beside" or "://" in text else os.path.abspath(text) for text in texts]


def batch_sizes(
    *,
    batch_size: Any = None,
    global_batch_size: Any = None,
    total: Any = None,
    global_total: Any = None,
    max_rows: Any = None,
) -> dict[str, float | None]:
    """Returns the arguments that describe a batch size as the native module takes them, rows checked."""
    return {
        "batch_size": whole_or_none("batch_size", batch_size, 1),
        "global_batch_size": whole_or_none("global_batch_size", global_batch_size, 1),
        "total": None if total is None else positive("total", total),
        "global_total": None if global_total is None else positive("global_total", global_total),
        "max_rows": whole_or_none("max_rows", max_rows, 1),
    }
