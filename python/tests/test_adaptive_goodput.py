"""Compares the best batch size with a search that tries all sizes."""

from __future__ import annotations

import random

import pytest

from feedstock.adaptive.goodput import Choice, Limits, best, goodput
from feedstock.adaptive.noise import GradientStatistics
from feedstock.adaptive.throughput import Configuration, ThroughputModel


def brute_force(
    model: ThroughputModel, statistics: GradientStatistics, nodes: int, ranks: int, limits: Limits
) -> Choice | None:
    """Computes the definition with plain loops, in Python floats."""
    low, high = limits.local_bsz_bounds
    options = [
        (ranks * size * steps, steps, size)
        for steps in range(1, limits.max_accumulation_steps + 1)
        for size in range(low, high + 1)
        if ranks * size * steps <= limits.max_batch_size
    ]
    if not options:
        return None
    smallest = min(limits.initial_batch_size, max(total for total, _, _ in options))
    found = None
    for total, steps, size in sorted(options):
        if total < smallest:
            continue
        gradient = model.alpha_grad + model.beta_grad * size
        alpha, beta = (
            (model.alpha_local, model.beta_local) if nodes == 1 else (model.alpha_node, model.beta_node)
        )
        sync = 0.0 if ranks == 1 else alpha + beta * (ranks - 2)
        step = (steps - 1) * gradient + (gradient**model.gamma + sync**model.gamma) ** (1 / model.gamma)
        noise_scale = statistics.var / statistics.sqr
        value = total / step * (noise_scale + limits.initial_batch_size) / (noise_scale + total)
        if found is None or value > found.goodput * (1 + 1e-9):
            found = Choice(size, steps, value)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_optimum_is_that_of_a_search_through_everything(seed: int) -> None:
    r = random.Random(seed)
    model = ThroughputModel(
        r.uniform(0.001, 0.1), r.uniform(1e-5, 1e-2), r.uniform(0, 0.2), r.uniform(0, 0.01),
        r.uniform(0, 0.5), r.uniform(0, 0.02), r.uniform(1, 10),
    )  # fmt: skip
    statistics = GradientStatistics(sqr=r.uniform(0.01, 10), var=r.uniform(0.1, 5000))
    ranks = r.choice([1, 2, 3, 4, 8])
    nodes = r.randint(1, ranks)
    initial = r.randint(1, 64) * ranks
    low = r.randint(1, 32)
    limits = Limits(
        initial, initial * r.randint(1, 12), (low, low + r.randint(0, 120)), r.choice([1, 1, 2, 5])
    )
    mine = best(model, statistics, nodes, ranks, limits)
    theirs = brute_force(model, statistics, nodes, ranks, limits)
    if theirs is None:
        assert mine is None
        return
    assert mine is not None
    assert mine.goodput == pytest.approx(theirs.goodput, rel=1e-8)
    there = Configuration(nodes, ranks, mine.local_bsz, mine.accumulation_steps)
    assert goodput(model, statistics, there, initial) == pytest.approx(theirs.goodput, rel=1e-8)
    assert (mine.local_bsz, mine.accumulation_steps) == (theirs.local_bsz, theirs.accumulation_steps)


def test_no_noise_keeps_the_initial_batch_and_much_noise_fills_the_devices() -> None:
    model = ThroughputModel(0.05, 0.001, 0.02, 0.0, 0.02, 0.0, 2.0)
    limits = Limits(64, 1024, (1, 256))
    none = best(model, GradientStatistics(sqr=1.0, var=0.0), 1, 4, limits)
    much = best(model, GradientStatistics(sqr=0.0, var=1.0), 1, 4, limits)
    assert none is not None
    assert much is not None
    assert none.local_bsz == 16
    assert much.local_bsz == 256


def test_between_them_the_best_size_grows_with_the_noise_scale() -> None:
    model = ThroughputModel(0.05, 0.001, 0.02, 0.0, 0.02, 0.0, 2.0)
    limits = Limits(64, 4096, (1, 1024))
    sizes = []
    for noise_scale in (1.0, 100.0, 1e3, 1e4, 1e5):
        choice = best(model, GradientStatistics(sqr=1.0, var=noise_scale), 1, 4, limits)
        assert choice is not None
        sizes.append(choice.local_bsz)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] < sizes[-1]


def test_fewer_ranks_than_the_initial_batch_needs_take_the_largest_allowed() -> None:
    model = ThroughputModel(0.05, 0.001, 0.0, 0.0, 0.0, 0.0, 1.0)
    statistics = GradientStatistics(sqr=1.0, var=100.0)
    choice = best(model, statistics, 1, 1, Limits(256, 1024, (8, 64)))
    assert choice is not None
    assert (choice.local_bsz, choice.accumulation_steps) == (64, 1)
    choice = best(model, statistics, 1, 1, Limits(256, 1024, (8, 64), max_accumulation_steps=16))
    assert choice is not None
    assert choice.local_bsz * choice.accumulation_steps >= 256


def test_limits_that_leave_nothing() -> None:
    model = ThroughputModel(0.05, 0.001, 0.0, 0.0, 0.0, 0.0, 1.0)
    assert best(model, GradientStatistics(1.0, 1.0), 1, 8, Limits(16, 32, (8, 16))) is None


def test_wide_ranges_are_searched_on_a_grid_that_loses_little() -> None:
    model = ThroughputModel(0.5, 1e-5, 0.02, 0.0, 0.02, 0.0, 2.0)
    statistics = GradientStatistics(sqr=1.0, var=3e4)
    limits = Limits(64, 200_000, (1, 50_000))
    mine = best(model, statistics, 1, 4, limits)
    theirs = brute_force(model, statistics, 1, 4, limits)
    assert mine is not None
    assert theirs is not None
    assert mine.goodput == pytest.approx(theirs.goodput, rel=1e-3)
