"""The throughput model: its formula, its fit to synthetic times, and its assumptions where nothing was measured."""

from __future__ import annotations

import numpy as np
import pytest

from feedstock.adaptive.throughput import Configuration, ThroughputModel, fit

TRUTH = ThroughputModel(0.020, 0.0015, 0.010, 0.002, 0.040, 0.004, 2.5)


def times(
    model: ThroughputModel, configurations: list[Configuration], noise: float = 0.0
) -> dict[Configuration, float]:
    random = np.random.default_rng(3)
    return {one: float(model.step_s(*one)) * float(np.exp(noise * random.normal())) for one in configurations}


def test_the_formula() -> None:
    gradient = 0.020 + 0.0015 * 32
    assert TRUTH.step_s(1, 1, 32, 1) == pytest.approx(gradient)
    sync = 0.010 + 0.002 * 2
    assert TRUTH.step_s(1, 4, 32, 1) == pytest.approx((gradient**2.5 + sync**2.5) ** (1 / 2.5))
    sync = 0.040 + 0.004 * 6
    last = (gradient**2.5 + sync**2.5) ** (1 / 2.5)
    assert TRUTH.step_s(2, 8, 32, 3) == pytest.approx(2 * gradient + last)
    assert TRUTH.throughput(2, 8, 32, 3) == pytest.approx(8 * 32 * 3 / (2 * gradient + last))


def test_high_powers_do_not_overflow() -> None:
    model = ThroughputModel(1e-8, 0.0, 1e4, 0.0, 0.0, 0.0, 10.0)
    assert model.step_s(1, 2, 1, 1) == pytest.approx(1e4)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_fit_predicts_what_it_has_not_seen(noise: float) -> None:
    seen = [
        Configuration(nodes, ranks, size, steps)
        for nodes, ranks in ((1, 1), (1, 2), (1, 4), (2, 8), (2, 4))
        for size in (8, 16, 32, 64)
        for steps in (1, 2)
    ]
    model = fit(times(TRUTH, seen, noise))
    for one in (
        Configuration(1, 1, 48, 1),
        Configuration(1, 3, 24, 2),
        Configuration(3, 12, 96, 1),
        Configuration(2, 6, 128, 4),
    ):
        assert model.step_s(*one) == pytest.approx(TRUTH.step_s(*one), rel=0.01 + 3 * noise), one
    if noise == 0.0:
        assert model.beta_grad == pytest.approx(TRUTH.beta_grad, rel=0.02)
        assert model.alpha_node == pytest.approx(TRUTH.alpha_node, rel=0.1)


def test_one_world_size_suffices_for_that_world_size() -> None:
    seen = [Configuration(1, 4, size, 1) for size in (8, 16, 32, 64)]
    model = fit(times(TRUTH, seen))
    for size in (8, 12, 24, 48, 96):
        assert model.step_s(1, 4, size, 1) == pytest.approx(TRUTH.step_s(1, 4, size, 1), rel=0.02), size


def test_two_sizes_give_a_line() -> None:
    model = fit({Configuration(1, 4, 8, 1): 0.050, Configuration(1, 4, 16, 1): 0.060})
    assert model.step_s(1, 4, 32, 1) == pytest.approx(0.080, rel=1e-3)
    assert model.step_s(1, 4, 12, 1) == pytest.approx(0.055, rel=1e-3)


def test_a_single_size_is_half_constant_so_that_larger_ones_are_tried() -> None:
    model = fit({Configuration(1, 1, 16, 1): 0.100})
    assert model.step_s(1, 1, 16, 1) == pytest.approx(0.100, rel=1e-6)
    assert model.step_s(1, 1, 32, 1) == pytest.approx(0.150, rel=1e-6)


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_all_reduce_that_cannot_be_told_is_half_of_the_constant_until_accumulation_was_tried(
    nodes: int,
) -> None:
    here = Configuration(nodes, 4, 16, 1)
    twice = here._replace(accumulation_steps=2)
    model = fit({here: 0.100})
    assert model.step_s(*here) == pytest.approx(0.100, rel=1e-6)
    assert model.step_s(*twice) == pytest.approx(0.175, rel=1e-6)
    model = fit({here: 0.100, twice: 0.190})
    assert model.gradient_s(16) == pytest.approx(0.090, rel=1e-3)
    assert model.sync_s(nodes, 4) == pytest.approx(0.010, rel=1e-2)


def test_what_was_not_measured_costs_nothing_yet() -> None:
    alone = fit(times(TRUTH, [Configuration(1, 1, size, 1) for size in (8, 16, 32)]))
    assert alone.sync_s(1, 8) == alone.sync_s(4, 8) == 0.0
    pair = fit(times(TRUTH, [Configuration(1, ranks, size, 1) for ranks in (1, 2) for size in (8, 16, 32)]))
    assert pair.sync_s(1, 2) > 0.0
    assert pair.sync_s(1, 8) == pair.sync_s(1, 2)
    assert pair.sync_s(2, 8) == pair.sync_s(1, 8)  # nodes like ranks


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be finite and > 0 s"):
        fit({Configuration(1, 1, 8, 1): seconds})


def test_no_times_are_refused() -> None:
    with pytest.raises(ValueError, match="no step times"):
        fit({})
