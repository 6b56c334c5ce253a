"""The gradient noise scale, for gradients with a known mean and covariance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from feedstock.adaptive.noise import GradientStatistics, NoiseAverage, from_parts


@pytest.mark.parametrize(("ranks", "rows"), [(2, 4), (8, 4), (4, 1), (64, 16)])
def test_parts_of_a_step_estimate_both_moments_without_bias(ranks: int, rows: int) -> None:
    random = np.random.default_rng(7)
    mean = random.normal(size=20)
    spread = np.linspace(0.5, 3.0, 20)  # Σ = diag(spread²)
    sqr_true, var_true = float(mean @ mean), float((spread**2).sum())
    sqr, var = [], []
    for _ in range(3000):
        parts = mean + random.normal(size=(ranks, 20)) * spread / math.sqrt(rows)
        whole = parts.mean(axis=0)
        one = from_parts(float((parts**2).sum(axis=1).mean()), float(whole @ whole), rows, ranks)
        sqr.append(one[0])
        var.append(one[1])
    for estimates, truth in ((sqr, sqr_true), (var, var_true)):
        error = np.std(estimates) / math.sqrt(len(estimates))
        assert abs(np.mean(estimates) - truth) < 4.0 * error, (np.mean(estimates), truth, error)
        assert 4.0 * error < 0.1 * truth  # the check is strict


def test_the_mean_of_the_ranks_shares_is_the_estimate_of_the_mean_norm() -> None:
    norms = [3.0, 5.0, 4.5, 2.0]
    shares = [from_parts(norm, 1.7, 8, 4) for norm in norms]
    whole = from_parts(sum(norms) / 4, 1.7, 8, 4)
    assert np.mean([share[0] for share in shares]) == pytest.approx(whole[0])
    assert np.mean([share[1] for share in shares]) == pytest.approx(whole[1])


def test_gain_and_efficiency_follow_the_formulas() -> None:
    statistics = GradientStatistics(sqr=2.0, var=600.0)
    assert statistics.noise_scale == 300.0
    assert statistics.efficiency(100, 100) == 1.0
    assert statistics.efficiency(500, 100) == pytest.approx((300 + 100) / (300 + 500))
    assert statistics.gain(500, 100) == pytest.approx(5 * (300 + 100) / (300 + 500))
    # AdaScale's form, with the variance of one initial batch.
    var, sqr, scale = 600.0 / 100, 2.0, 5
    assert statistics.gain(500, 100) == pytest.approx((var + sqr) / (var / scale + sqr))


def test_the_ends_of_the_range() -> None:
    only_noise = GradientStatistics(sqr=-0.1, var=5.0)  # an estimate may be negative
    assert only_noise.noise_scale == math.inf
    assert only_noise.efficiency(800, 100) == 1.0
    assert only_noise.gain(800, 100) == 8.0
    no_noise = GradientStatistics(sqr=1.0, var=-0.1)
    assert no_noise.noise_scale == 0.0
    assert no_noise.efficiency(800, 100) == 1 / 8
    assert no_noise.gain(800, 100) == 1.0
    assert GradientStatistics(0.0, 0.0).gain(800, 100) == 1.0


def test_the_average_has_no_bias_at_its_start_and_forgets_later() -> None:
    average = NoiseAverage(smoothing=0.9)
    assert average.statistics is None
    average.update(4.0, 8.0, steps=1, scale=1.0, successive=False)
    assert average.statistics is not None
    assert average.statistics.sqr == pytest.approx(4.0)
    average.update(1.0, 2.0, steps=100, scale=2.0, successive=False)
    assert average.statistics.sqr == pytest.approx(1.0, rel=1e-6)
    # Two steps of double size count as four of the initial size.
    a, b = NoiseAverage(0.9), NoiseAverage(0.9)
    for one in (a, b):
        one.update(4.0, 8.0, 10, 1.0, successive=False)
    a.update(1.0, 1.0, 2, 2.0, successive=False)
    b.update(1.0, 1.0, 4, 1.0, successive=False)
    assert a.statistics == b.statistics


def test_better_estimates_replace_those_of_successive_steps() -> None:
    average = NoiseAverage()
    average.update(100.0, 100.0, 1000, 1.0, successive=True)
    average.update(1.0, 3.0, 1, 1.0, successive=False)
    assert average.statistics is not None
    assert average.statistics.noise_scale == pytest.approx(3.0)


def test_the_average_survives_its_state() -> None:
    average = NoiseAverage()
    average.update(0.3, 0.7, 5, 1.5, successive=True)
    copy = NoiseAverage()
    copy.load(average.state())
    for one in (average, copy):
        one.update(0.2, 0.9, 3, 1.0, successive=True)
    assert copy.statistics == average.statistics
