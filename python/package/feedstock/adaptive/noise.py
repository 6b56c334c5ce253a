"""The gradient noise scale: the batch size, in samples, above which a batch's gradient is more signal than noise.

With G the true gradient and Σ the covariance of one sample's gradient, a batch of B samples has E|g_B|² = |G|² +
tr(Σ)/B (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix A.1). Two batch sizes give two
equations, and so unbiased estimates of |G|² and tr(Σ). Both are noisy and may be negative, so they are averaged first
and divided last: φ = tr(Σ)/|G|², in samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class GradientStatistics:
    """Moments of the gradient.

    Args:
        sqr: |G|², the squared norm of the true gradient.
        var: tr(Σ), the total variance of one sample's gradient, in the same unit.
    """

    sqr: float
    var: float

    @property
    def noise_scale(self) -> float:
        """φ = tr(Σ)/|G|² in samples; infinite without a signal, 0 without noise."""
        if self.var <= 0.0:
            return 0.0
        return self.var / self.sqr if self.sqr > 0.0 else math.inf

    def gain(self, batch_size: float, initial_batch_size: float) -> float:
        """Returns AdaScale's gain: the value of a step in steps of the initial batch size, from 1 to M/M₀.

        r = (tr(Σ)/M₀ + |G|²) / (tr(Σ)/M + |G|²), Johnson et al., "AdaScale SGD", ICML 2020.
        """
        sqr, var = max(self.sqr, 0.0), max(self.var, 0.0)
        if sqr + var == 0.0:
            return 1.0
        return (var / initial_batch_size + sqr) / (var / batch_size + sqr)

    def efficiency(self, batch_size: float, initial_batch_size: float) -> float:
        """Returns the progress of a sample relative to the initial batch size: (φ + M₀)/(φ + M), Pollux, section 3.1.

        It is 1 at M₀, and M₀/M without noise.
        """
        return self.gain(batch_size, initial_batch_size) * initial_batch_size / batch_size


def from_parts(part_sqr: float, mean_sqr: float, part_size: float, parts: int) -> tuple[float, float]:
    """Returns unbiased (|G|², tr(Σ)) of a step whose gradient is the mean of several gradients.

    The parts are the ranks' micro-batches. Both results are linear in the first two arguments, so ranks may average
    their results instead of their norms.

    Args:
        part_sqr: The mean of the squared norms of the parts' gradients.
        mean_sqr: The squared norm of their mean.
        part_size: Samples of each part.
        parts: The number of parts, at least 2.
    """
    sqr = (parts * mean_sqr - part_sqr) / (parts - 1)
    var = (part_sqr - mean_sqr) * part_size * parts / (parts - 1)
    return sqr, var


class NoiseAverage:
    """Exponential averages of |G|² and tr(Σ), corrected for their start.

    A step of S times the initial batch size counts S times: θ = smoothing^S. The default 0.999 is AdaScale's 1 −
    S/1000: it averages over about a thousand steps of the initial batch size.
    """

    def __init__(self, smoothing: float = 0.999) -> None:
        self.smoothing = smoothing
        self._sqr = 0.0
        self._var = 0.0
        self._weight = 0.0
        self._successive = False

    def update(self, sqr: float, var: float, steps: int, scale: float, successive: bool) -> None:
        """Adds the means over `steps` steps of `scale` times the initial batch size.

        Args:
            sqr: The mean of |G|².
            var: The mean of tr(Σ).
            steps: The number of steps.
            scale: Their batch size, as a multiple of the initial one.
            successive: The estimate compares gradients of successive steps, between which the parameters changed. The
                first better estimate replaces such averages.
        """
        if successive != self._successive:
            self._sqr = self._var = self._weight = 0.0
            self._successive = successive
        keep = float(self.smoothing ** (steps * scale))
        self._sqr = keep * self._sqr + (1.0 - keep) * sqr
        self._var = keep * self._var + (1.0 - keep) * var
        self._weight = keep * self._weight + (1.0 - keep)

    @property
    def statistics(self) -> GradientStatistics | None:
        """The averages; None before the first update."""
        if self._weight <= 0.0:
            return None
        return GradientStatistics(self._sqr / self._weight, self._var / self._weight)

    def state(self) -> list[float]:
        return [self._sqr, self._var, self._weight, float(self._successive)]

    def load(self, state: list[float]) -> None:
        self._sqr, self._var, self._weight = state[:3]
        self._successive = bool(state[3])
