"""Sums of metrics over ranks and restarts, exact to the last bit.

A floating-point sum depends on its order, and so on the world size and on where a run was resumed. Here sums are
integers: every finite float64 is a multiple of 2⁻¹⁰⁷⁴, so adding is exact. The total is rounded once, when it is read.
The same numbers give the same total on any number of ranks, in any order, after any number of resumes. An addition
takes about a microsecond.
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
    """A sum without rounding. `value` is the nearest float64, or an int if all numbers were ints."""

    __slots__ = ("_irregular", "_is_float", "_units")

    def __init__(self) -> None:
        self._units = 0  # in 2**-1074
        self._is_float = False
        self._irregular = 0.0  # sum of infinities and NaNs

    def add(self, number: Number) -> None:
        """Adds an int or a float. After an infinity or NaN, the sum is an infinity or NaN."""
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
            return self._units / (1 << SHIFT)  # Python rounds a quotient of integers once, to the nearest
        except OverflowError:
            return math.inf if self._units > 0 else -math.inf

    def state(self) -> list[Any]:
        """Returns plain values for a checkpoint: mantissa, exponent, whether it is a float, and the non-finite part."""
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

    Values are ints, floats, or objects with one element and `item()` (numpy scalars; 0-d tensors, which on CUDA
    synchronize). Each rank adds only its rows.

    Args:
        exchange: How the ranks communicate; default: torch.distributed if it is initialized. Accumulators of a loader
            use that of the loader.
    """

    def __init__(self, exchange: Exchange | None = None) -> None:
        self.exchange: Exchange = exchange if exchange is not None else default_exchange(1)
        self._totals: dict[str, ExactSum] = {}  # of all ranks, up to the last sync
        self._pending: dict[str, ExactSum] = {}  # of this rank, since

    def add(self, **values: Any) -> None:
        """Adds to the sums of these names on this rank, without communication."""
        self.update(values)

    def update(self, values: Mapping[str, Any]) -> None:
        """Like `add`, for names that are not Python identifiers."""
        numbers_ = {name: _number(name, value) for name, value in values.items()}
        for name, number in numbers_.items():
            self._pending.setdefault(name, ExactSum()).add(number)

    def sync(self) -> None:
        """Adds what all ranks added since the last call to every rank's totals. Collective."""
        for pending in self.exchange.all_gather({name: one.state() for name, one in self._pending.items()}):
            for name, state in pending.items():
                self._totals.setdefault(name, ExactSum()).merge(ExactSum.of_state(state))
        self._pending.clear()

    def totals(self) -> dict[str, Number]:
        """Returns the sums over all ranks, the same on each, sorted by name. Collective."""
        self.sync()
        return {name: self._totals[name].value for name in sorted(self._totals)}

    def reset(self) -> None:
        """Resets all sums to 0. Every rank must call it at the same step."""
        self._totals.clear()
        self._pending.clear()

    def state_dict(self) -> dict[str, Any]:
        """Returns the totals over all ranks, equal on each; about 50 bytes for each name.

        Raises:
            ConfigError: This rank has added since the last `sync`. A checkpoint of one rank would lose the additions
                of the others.
        """
        if self._pending and self.exchange.size > 1:
            raise ConfigError(
                f"the sums {sorted(self._pending)} have additions that are not shared yet; call sync() on every rank "
                "before state_dict()"
            )
        if self.exchange.size == 1:
            self.sync()
        return {"version": 1, "totals": {name: total.state() for name, total in self._totals.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with these totals, on any number of ranks. Every rank must load the same state."""
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
