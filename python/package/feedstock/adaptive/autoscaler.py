"""Chooses the batch size from the profile of step times and the noise scale. No clock, no communication.

Every rank has an autoscaler and gives it the same measurements in the same order, so their states are equal. One rank
decides and sends the decision to the others.
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

# A configuration's last measurements. Their median counts, so that one disturbed interval has no effect.
TIMES_KEPT = 5
# A batch is at most this many times the largest measured one: the model is not trusted far from its data.
GROWTH = 2
# A change must promise this ratio of goodputs (AdaptDL's threshold); less is within the noise of the estimates.
MIN_SPEEDUP = 1.05


@dataclass(frozen=True)
class Decision:
    """A change of the batch size, and its prediction.

    `goodput` and `current_goodput` are samples of the initial batch size a second, with this decision and without.
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
        self.limits: Limits = limits
        self.min_speedup = min_speedup
        self.noise: NoiseAverage = NoiseAverage(smoothing)
        self._profile: dict[Configuration, list[float]] = {}

    @property
    def statistics(self) -> GradientStatistics | None:
        """The averaged moments of the gradient; None before the first measurement."""
        return self.noise.statistics

    @property
    def profile(self) -> dict[Configuration, float]:
        """Seconds of an optimizer step for every configuration that was measured."""
        return {configuration: stats.median(times) for configuration, times in self._profile.items()}

    def record_time(self, configuration: Configuration, seconds: float) -> None:
        """Records a measured mean time of an optimizer step."""
        times = self._profile.setdefault(configuration, [])
        times.append(seconds)
        del times[:-TIMES_KEPT]

    def decide(self, current: Configuration) -> Decision | None:
        """Returns the best configuration for this number of nodes and ranks; None to keep the current one.

        The current one is kept while gradients or step times are missing, and if the change does not promise
        `min_speedup`.
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
        now = goodput(model, statistics, current, self.limits.initial_batch_size)
        if (choice.local_bsz, choice.accumulation_steps) == (current.local_bsz, current.accumulation_steps):
            return None
        if choice.goodput < self.min_speedup * now:
            return None
        return Decision(choice.local_bsz, choice.accumulation_steps, choice.goodput, now, model)

    def place(self, batch_size: int, world_size: int) -> tuple[int, int]:
        """Returns (rows of a micro-batch, micro-batches) for about this batch size on all ranks, within the limits."""
        low, high = self.limits.local_bsz_bounds
        options = []
        for accumulation_steps in range(1, self.limits.max_accumulation_steps + 1):
            rows = -(-batch_size // (world_size * accumulation_steps))
            local_bsz = min(max(rows, low), high)
            total = world_size * local_bsz * accumulation_steps
            if total > self.limits.max_batch_size and local_bsz > low:
                local_bsz = max(low, self.limits.max_batch_size // (world_size * accumulation_steps))
                total = world_size * local_bsz * accumulation_steps
            options.append((abs(total - batch_size), accumulation_steps, local_bsz))
        _, accumulation_steps, local_bsz = min(options)
        return local_bsz, accumulation_steps

    def state(self) -> dict[str, Any]:
        """Returns plain values for a checkpoint; about 100 bytes for each configuration."""
        return {
            "initial_batch_size": self.limits.initial_batch_size,
            "noise": self.noise.state(),
            "profile": [[*configuration, times] for configuration, times in self._profile.items()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continues with a state, and with its initial batch size, for which the learning rate was tuned."""
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
