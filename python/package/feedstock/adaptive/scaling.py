"""Rules for the learning rate when the batch size is M instead of the M₀ it was tuned for.

A rule is a factor; the optimizer stays the caller's. See `AdaptiveLoader.scaled_lr`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from .noise import GradientStatistics


class ScalingRule(ABC):
    """A rule gives the factor for the learning rate of the initial batch size."""

    @abstractmethod
    def factor(
        self, statistics: GradientStatistics | None, batch_size: float, initial_batch_size: float
    ) -> float:
        """The factor for a step of `batch_size` rows; `statistics` is None until gradients were seen."""


class AdaScale(ScalingRule):
    """The gain r, from 1 to M/M₀: as much as the noise that the larger batch removes (Johnson et al., ICML
    2020).

    For SGD with momentum. Until gradients were seen the factor is 1.
    """

    def factor(
        self, statistics: GradientStatistics | None, batch_size: float, initial_batch_size: float
    ) -> float:
        if statistics is None:
            return 1.0
        return statistics.gain(batch_size, initial_batch_size)


class SquareRoot(ScalingRule):
    """√(M/M₀): for Adam, AdamW, RMSprop, whose step is the gradient over its own size (Krizhevsky 2014;
    Malladi et al., NeurIPS 2022)."""

    def factor(
        self, statistics: GradientStatistics | None, batch_size: float, initial_batch_size: float
    ) -> float:
        return math.sqrt(batch_size / initial_batch_size)


class Linear(ScalingRule):
    """M/M₀: for SGD with warm-up, while M is well under the noise scale (Goyal et al., 2017)."""

    def factor(
        self, statistics: GradientStatistics | None, batch_size: float, initial_batch_size: float
    ) -> float:
        return batch_size / initial_batch_size


class Unscaled(ScalingRule):
    """1: the learning rate is left alone."""

    def factor(
        self, statistics: GradientStatistics | None, batch_size: float, initial_batch_size: float
    ) -> float:
        return 1.0
