"""Sums of metrics over ranks and restarts, exact to the last bit.

A sum of floats in floating point depends on its order, hence on the world size and on where a run was cut.
Here sums are
integers: every finite float64 is a whole multiple of 2⁻¹⁰⁷⁴, so adding is exact, and the one rounding happens
when the total is read. The same numbers give the same total on any number of ranks, in any order, however
often the run was resumed. An addition costs about a microsecond.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any, SupportsFloat, SupportsIndex

from feedstock import ConfigError

from .exchange import Exchange, default_exchange

SHIFT = 1074  # the smallest positive float64 is 2**-1074

Number = int | float


class ExactSum:
    """A sum of numbers without rounding; `value` is its nearest float64, or an int if all numbers were."""

    __slots__ = ("_irregular", "_is_float", "_units")

    def __init__(self) -> None:
        self._units = 0  # in 2**-1074
        self._is_float = False
        self._irregular = 0.0  # sum of the infinities and NaNs that came

    def add(self, number: Number) -> None:
        """Adds an int or a float; an infinity or NaN makes the sum one."""
        if isinstance(number, int):
            self._units += number << SHIFT
            return
        self._is_float = True
        if not math.isfinite(number):
            self._irregular += number
            return
        numerator, denominator = number.as_integer_ratio()
        self._units += numerator << (SHIFT + 1 - denominator.bit_length())

    def merge(self, other: ExactSum) -> None:
        self._units += other._units
        self._is_float |= other._is_float
        self._irregular += other._irregular

    @property
    def value(self) -> Number:
        if not self._is_float:
            return self._units >> SHIFT
        if self._irregular != 0.0:  # NaN included
            return self._irregular
        try:
            return self._units / (1 << SHIFT)  # Python rounds a quotient of integers once, to nearest
        except OverflowError:
            return math.inf if self._units > 0 else -math.inf

    def state(self) -> list[Any]:
        """Plain values, for a checkpoint: mantissa and exponent, whether it is a float, and what was not
        finite.
        """
        zeros = (self._units & -self._units).bit_length() - 1 if self._units else SHIFT
        return [hex(self._units >> zeros), zeros - SHIFT, self._is_float, self._irregular]

    @classmethod
    def of_state(cls, state: list[Any]) -> ExactSum:
        total = cls()
        total._units = int(state[0], 16) << (int(state[1]) + SHIFT)
        total._is_float = bool(state[2])
        total._irregular = float(state[3])
        return total


class Accumulator:
    """Sums of metrics over all ranks, and over restarts.

    ```python
    metrics = loader.accumulator("train")                       # saved with the loader's state
    for batch in loader:
        metrics.add(loss=loss.item() * rows, correct=correct, rows=rows)
    totals = metrics.totals()                                   # collective: the same on every rank
    print(totals["loss"] / totals["rows"])
    metrics.reset()
    ```
    Values are ints, floats, or anything with one element and `item()` (numpy scalars, 0-d tensors; a CUDA
    tensor is waited for). Every rank adds its own rows only.

    exchange: how the ranks speak; default torch.distributed if it is initialised. An accumulator that a
    loader made uses the loader's.
    """

    def __init__(self, exchange: Exchange | None = None) -> None:
        self.exchange = exchange if exchange is not None else default_exchange(1)
        self._totals: dict[str, ExactSum] = {}  # of all ranks, up to the last sync
        self._pending: dict[str, ExactSum] = {}  # of this rank, since

    def add(self, **values: Any) -> None:
        """Adds to the sums of these names, on this rank; nothing is exchanged."""
        self.update(values)

    def update(self, values: Mapping[str, Any]) -> None:
        """The same, for names that are no Python words."""
        numbers_ = {name: _number(name, value) for name, value in values.items()}
        for name, number in numbers_.items():
            self._pending.setdefault(name, ExactSum()).add(number)

    def sync(self) -> None:
        """Collective: what the ranks added since the last time becomes part of every rank's totals."""
        for pending in self.exchange.all_gather({name: one.state() for name, one in self._pending.items()}):
            for name, state in pending.items():
                self._totals.setdefault(name, ExactSum()).merge(ExactSum.of_state(state))
        self._pending.clear()

    def totals(self) -> dict[str, Number]:
        """Collective: the sums over all ranks, the same on each, sorted by name."""
        self.sync()
        return {name: self._totals[name].value for name in sorted(self._totals)}

    def reset(self) -> None:
        """Back to nothing. Every rank does so at the same place."""
        self._totals.clear()
        self._pending.clear()

    def state_dict(self) -> dict[str, Any]:
        """The totals over all ranks, equal on each; about 50 bytes a name.

        Raises ConfigError if ranks have added since the last `sync`: a checkpoint of one rank would lose the
        others'.
        """
        if self._pending and self.exchange.size > 1:
            raise ConfigError(
                f"the sums {sorted(self._pending)} have additions that only this rank knows: call sync() on "
                "every rank before state_dict()"
            )
        if self.exchange.size == 1:
            self.sync()
        return {"version": 1, "totals": {name: total.state() for name, total in self._totals.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from these totals, whatever the number of ranks was. Every rank loads the same state."""
        if state.get("version") != 1:
            raise ConfigError(f"the version of an accumulator state must be 1; got {state.get('version')!r}")
        self._totals = {name: ExactSum.of_state(one) for name, one in state["totals"].items()}
        self._pending.clear()


def _number(name: str, value: Any) -> Number:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, numbers.Integral | SupportsIndex):
        return int(value)
    if isinstance(value, numbers.Real | SupportsFloat) and not isinstance(value, str):
        return float(value)
    raise ConfigError(f"{name} must be an int, a float or a tensor of one element; got {value!r}")
