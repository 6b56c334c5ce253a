"""Arguments that are whole numbers."""

from __future__ import annotations

import operator
from typing import Any

from feedstock.errors import ConfigError

_MOST = 2**63 - 1


def whole(name: str, value: Any, least: int = 0) -> int:
    """``value`` as an int (numpy's are, too), if it is a whole number of at least ``least``."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} is a whole number, not {value!r}") from None
    if not least <= number <= _MOST:
        raise ConfigError(f"{name} is at least {least} and below 2**63, not {value!r}")
    return number


def whole_or_none(name: str, value: Any, least: int = 0) -> int | None:
    """As ``whole``, where None stands for the default."""
    return None if value is None else whole(name, value, least)
