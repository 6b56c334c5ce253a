"""Checks of arguments. Their messages have the form "NAME must be …; got …"."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable, Collection
from typing import Any

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
    given = [value] if isinstance(value, str | os.PathLike) else list(value)
    if not all(isinstance(folder, str | os.PathLike) for folder in given):
        raise ConfigError(f"{name} must be a folder or a list of folders; got {value!r}")
    texts = [os.fspath(folder) for folder in given]
    return [text if text == "beside" or "://" in text else os.path.abspath(text) for text in texts]


def batch_sizes(
    *,
    batch_size: Any = None,
    global_batch_size: Any = None,
    total: float | None = None,
    global_total: float | None = None,
    max_rows: Any = None,
) -> dict[str, float | None]:
    """Returns the arguments that describe a batch size as the native module takes them, rows checked."""
    return {
        "batch_size": whole_or_none("batch_size", batch_size, 1),
        "global_batch_size": whole_or_none("global_batch_size", global_batch_size, 1),
        "total": total,
        "global_total": global_total,
        "max_rows": whole_or_none("max_rows", max_rows, 1),
    }
