"""What nulls of a column become."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Literal, cast

from feedstock._check import one_of
from feedstock.errors import ConfigError

#: ``"list"`` keeps them, ``"mask"`` adds a column, and a value replaces them.
NullsOf = Literal["list", "mask"] | bool | int | float


def plain_nulls(nulls: Any) -> NullsOf:
    """Returns a setting of ``nulls`` without numpy's types."""
    if isinstance(nulls, str):
        one_of("nulls", nulls, ("list", "mask"))
        return cast("NullsOf", nulls)
    if isinstance(nulls, bool) or type(nulls).__name__ in ("bool_", "bool"):
        return bool(nulls)
    if isinstance(nulls, Integral):
        return int(nulls)
    if isinstance(nulls, Real):
        return float(nulls)
    raise ConfigError(f"nulls must be 'list', 'mask' or a value; got {nulls!r}")
