"""Rules for the learning rate at a batch size M, if it was tuned for a batch size M₀.

A rule computes a factor and does not change the optimizer. See `AdaptiveLoader.scaled_lr`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from .noise import GradientStatistics


class ScalingRule(ABC):
    """Computes the factor for the learning rate of the initial batch size."""

    @abstractmethod
    def factor(
        self, statistics: GradientStatistics | None, batch_size: float, initial_batch_size: float
    ) -> float:
        """Returns the factor for a step of `batch_size` rows; `statistics` is None before gradients were measured."""


class AdaScale(ScalingRule):
    """The gain r, from 1 to M/M₀, by the noise that the larger batch removes (Johnson et al., ICML 2020).

    For SGD with momentum. The factor is 1 before gradients were measured.
    """

    def factor(
        self, statistics: GradientStatistics | None, batch_size: float, initial_batch_size: float
    ) -> float:
        if statistics is None:
            return 1.0
        return statistics.gain(batch_size, initial_batch_size)


class SquareRoot(ScalingRule):
    """√(M/M₀): for Adam, AdamW and RMSprop, which divide the gradient by its magnitude.

    See Krizhevsky 2014, and Malladi et al., NeurIPS 2022.
    """

    def factor(
        self, statistics: GradientStatistics | None, batch_size: float, initial_batch_size: float
    ) -> float:
        return math.sqrt(batch_size / initial_batch_size)


class Linear(ScalingRule):
    """M/M₀: for SGD with warm-up, while M is far below the noise scale (Goyal et al., 2017)."""

    def factor(
        self, statistics: GradientStatistics | None, batch_size: float, initial_batch_size: float
    ) -> float:
        return batch_size / initial_batch_size


class Unscaled(ScalingRule):
    """1: the learning rate is not changed."""

    def factor(
        self, statistics: GradientStatistics | None, batch_size: float, initial_batch_size: float
    ) -> float:
        return 1.0
