"""Chooses the batch size: the profile of step times, the noise scale, and the decision. No clock, no
communication.

Every rank keeps one and feeds it the same facts in the same order, so their states are equal; what to do is
decided by one of them and told to the others.
"""

from __future__ import annotations

import statistics as stats
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from feedstock import ConfigError

from .goodput import Limits, best, goodput
from .noise import GradientStatistics, NoiseAverage
from .throughput import Configuration, ThroughputModel, fit

TIMES_KEPT = (
    5  # a configuration's last measurements, whose median counts: one disturbed interval changes nothing
)
GROWTH = 2  # a batch at most so many times the largest measured: the model is not believed far from its data
MIN_SPEEDUP = (
    1.05  # a change must promise as much (AdaptDL's threshold); less is within the noise of the estimates
)


@dataclass(frozen=True)
class Decision:
    """What to do, and what was predicted.

    goodput, current_goodput: samples of the initial batch size a second, with this decision and without.
    """

    local_bsz: int
    accumulation_steps: int
    goodput: float
    current_goodput: float
    model: ThroughputModel

    def batch_size(self, world_size: int) -> int:
        """Rows of an optimizer step over all ranks."""
        return world_size * self.local_bsz * self.accumulation_steps


class Autoscaler:
    """Finds the batch size with the highest goodput within the limits."""

    def __init__(self, limits: Limits, min_speedup: float = MIN_SPEEDUP, smoothing: float = 0.999) -> None:
        self.limits = limits
        self.min_speedup = min_speedup
        self.noise = NoiseAverage(smoothing)
        self._profile: dict[Configuration, list[float]] = {}

    @property
    def statistics(self) -> GradientStatistics | None:
        """The averaged moments of the gradient; None until some were measured."""
        return self.noise.statistics

    @property
    def profile(self) -> dict[Configuration, float]:
        """Seconds an optimizer step, for every configuration that was tried."""
        return {configuration: stats.median(times) for configuration, times in self._profile.items()}

    def record_time(self, configuration: Configuration, seconds: float) -> None:
        """A measured mean time of an optimizer step."""
        times = self._profile.setdefault(configuration, [])
        times.append(seconds)
        del times[:-TIMES_KEPT]

    def decide(self, current: Configuration) -> Decision | None:
        """The best configuration for this number of nodes and ranks; None if the current one stays.

        It stays while gradients or step times are missing, and unless the change promises `min_speedup`.
        """
        statistics = self.statistics
        profile = self.profile
        if statistics is None or not profile:
            return None
        model = fit(profile)
        measured = [one for one in profile if one.world_size == current.world_size] or [current]
        low, high = self.limits.local_bsz_bounds
        limits = replace(
            self.limits,
            max_batch_size=min(self.limits.max_batch_size, GROWTH * max(one.batch_size for one in measured)),
            local_bsz_bounds=(low, max(low, min(high, GROWTH * max(one.local_bsz for one in measured)))),
        )
        choice = best(model, statistics, current.nodes, current.world_size, limits)
        if choice is None:
            return None
        here = goodput(model, statistics, current, self.limits.initial_batch_size)
        if (choice.local_bsz, choice.accumulation_steps) == (current.local_bsz, current.accumulation_steps):
            return None
        if choice.goodput < self.min_speedup * here:
            return None
        return Decision(choice.local_bsz, choice.accumulation_steps, choice.goodput, here, model)

    def place(self, batch_size: int, world_size: int) -> tuple[int, int]:
        """(rows of a micro-batch, micro-batches) for about this batch size on so many ranks, within the
        limits.
        """
        low, high = self.limits.local_bsz_bounds
        options = []
        for accumulation_steps in range(1, self.limits.max_accumulation_steps + 1):
            wanted = -(-batch_size // (world_size * accumulation_steps))
            local_bsz = min(max(wanted, low), high)
            total = world_size * local_bsz * accumulation_steps
            if total > self.limits.max_batch_size and local_bsz > low:
                local_bsz = max(low, self.limits.max_batch_size // (world_size * accumulation_steps))
                total = world_size * local_bsz * accumulation_steps
            options.append((abs(total - batch_size), accumulation_steps, local_bsz))
        _, accumulation_steps, local_bsz = min(options)
        return local_bsz, accumulation_steps

    def state(self) -> dict[str, Any]:
        """Plain values, for a checkpoint; about 100 bytes a configuration."""
        return {
            "initial_batch_size": self.limits.initial_batch_size,
            "noise": self.noise.state(),
            "profile": [[*configuration, times] for configuration, times in self._profile.items()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; the initial batch size is the saved one, since the learning rate was tuned
        for it.
        """
        initial = int(state["initial_batch_size"])
        if initial > self.limits.max_batch_size:
            raise ConfigError(
                f"max_batch_size must be >= {initial}, the rows of the saved initial batch size; got "
                f"{self.limits.max_batch_size}"
            )
        self.limits = replace(self.limits, initial_batch_size=initial)
        self.noise.load(list(state["noise"]))
        self._profile = {
            Configuration(int(nodes), int(world), int(local), int(steps)): [float(time) for time in times]
            for nodes, world, local, steps, times in state["profile"]
        }
