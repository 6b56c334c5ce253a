"""Goodput: samples a second, weighted by a sample's value at that batch size (Pollux, section 3).

    GOODPUT(K, m, A) = THROUGHPUT(K, m, A) × EFFICIENCY(M),    M = K · m · A

Its unit is samples of the initial batch size a second, by which batch sizes can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .noise import GradientStatistics
from .throughput import Configuration, ThroughputModel

GRID = 512  # candidates of an axis: every integer of a shorter axis, else integers in steps of 1–2 % at most


@dataclass(frozen=True)
class Limits:
    """The limits of a choice.

    Args:
        initial_batch_size: M₀, rows of a step over all ranks. It is the smallest batch size and the reference of
            efficiency.
        max_batch_size: The largest M.
        local_bsz_bounds: The smallest and largest micro-batch of one rank, by its memory.
        max_accumulation_steps: The most micro-batches of an optimizer step; 1 (default): no accumulation.
    """

    initial_batch_size: int
    max_batch_size: int
    local_bsz_bounds: tuple[int, int]
    max_accumulation_steps: int = 1


@dataclass(frozen=True)
class Choice:
    """A configuration and its predicted goodput, in samples a second."""

    local_bsz: int
    accumulation_steps: int
    goodput: float


def goodput(
    model: ThroughputModel,
    statistics: GradientStatistics,
    configuration: Configuration,
    initial_batch_size: int,
) -> float:
    """Returns the predicted goodput of a configuration."""
    return float(
        model.throughput(*configuration) * statistics.efficiency(configuration.batch_size, initial_batch_size)
    )


def best(
    model: ThroughputModel, statistics: GradientStatistics, nodes: int, world_size: int, limits: Limits
) -> Choice | None:
    """Returns the choice with the highest goodput; None if no choice is within the limits.

    All combinations are computed (at most GRID values of an axis). Among equals, the smaller batch and then fewer
    micro-batches win. If no allowed combination reaches the initial batch size (after ranks were lost), the largest
    allowed one replaces it as the smallest.
    """
    low, high = limits.local_bsz_bounds
    local = _integers(low, high)[:, None]
    accumulation = _integers(1, limits.max_accumulation_steps)[None, :]
    total = world_size * local * accumulation
    allowed = total <= limits.max_batch_size
    if not allowed.any():
        return None
    smallest = min(limits.initial_batch_size, int(total[allowed].max()))
    allowed &= total >= smallest
    sqr, var = max(statistics.sqr, 0.0), max(statistics.var, 0.0)
    initial = limits.initial_batch_size
    known = sqr + var > 0.0
    efficiency: Any = (var + initial * sqr) / (var + total * sqr) if known else initial / total
    value = model.throughput(nodes, world_size, local, accumulation) * efficiency
    value = np.where(allowed, value, -1.0)
    top = value.max()
    equals = np.argwhere(value >= top * (1.0 - 1e-12))
    row, column = min(equals, key=lambda at: (total[at[0], at[1]], accumulation[0, at[1]]))
    return Choice(int(local[row, 0]), int(accumulation[0, column]), float(value[row, column]))


def _integers(low: int, high: int) -> npt.NDArray[np.int64]:
    if high - low < GRID:
        return np.arange(low, high + 1, dtype=np.int64)
    return np.unique(np.rint(np.geomspace(low, high, GRID)).astype(np.int64))
