"""When the batch size changes and when it stays, and the timer that feeds the decision."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from feedstock import ConfigError
from feedstock.adaptive import Autoscaler, Configuration, Limits, ThroughputModel
from feedstock.adaptive.timer import WARM_UP_STEPS, StepTimer

MODEL = ThroughputModel(0.100, 0.001, 0.020, 0.001, 0.050, 0.001, 2.0)


def measured(scaler: Autoscaler, *configurations: Configuration) -> None:
    for one in configurations:
        scaler.record_time(one, float(MODEL.step_s(*one)))


def scaler(maximum: int = 1024, bounds: tuple[int, int] = (1, 256), steps: int = 1) -> Autoscaler:
    return Autoscaler(Limits(32, maximum, bounds, steps))


def test_nothing_changes_before_there_is_something_to_go_by() -> None:
    one = scaler()
    here = Configuration(1, 4, 8, 1)
    assert one.decide(here) is None
    measured(one, here)
    assert one.decide(here) is None  # no gradients yet
    other = scaler()
    other.noise.update(1.0, 500.0, 100, 1.0, successive=False)
    assert other.decide(here) is None  # no times yet


def test_a_noisy_gradient_grows_the_batch_by_no_more_than_twice_what_was_measured() -> None:
    one = scaler()
    one.noise.update(1.0, 1e6, 100, 1.0, successive=False)
    here = Configuration(1, 4, 8, 1)
    sizes = []
    for _ in range(6):
        measured(one, here)
        decision = one.decide(here)
        if decision is None:
            break
        assert decision.goodput > 1.05 * decision.current_goodput
        assert decision.local_bsz <= 2 * here.local_bsz
        here = here._replace(local_bsz=decision.local_bsz)
        sizes.append(decision.local_bsz)
    assert sizes == [16, 32, 64, 128, 256]


def test_a_gradient_without_noise_brings_the_initial_batch_back() -> None:
    one = scaler()
    one.noise.update(1.0, 0.0, 100, 1.0, successive=False)
    measured(one, Configuration(1, 4, 8, 1), Configuration(1, 4, 64, 1))
    decision = one.decide(Configuration(1, 4, 64, 1))
    assert decision is not None
    assert decision.local_bsz == 8


def test_a_change_that_promises_little_is_not_made() -> None:
    one = scaler()
    one.noise.update(1.0, 2000.0, 1000, 1.0, successive=False)
    measured(one, *(Configuration(1, 4, size, 1) for size in (8, 32, 64, 128)))
    best = one.decide(Configuration(1, 4, 8, 1))
    assert best is not None
    near = Configuration(1, 4, best.local_bsz - 1, 1)
    assert one.decide(near) is None
    one.min_speedup = 1.0
    again = one.decide(near)
    assert again is not None
    assert again.local_bsz == best.local_bsz
    assert one.decide(Configuration(1, 4, best.local_bsz, 1)) is None


def test_accumulation_is_chosen_where_memory_forbids_larger_micro_batches() -> None:
    one = scaler(bounds=(1, 8), steps=64)
    one.noise.update(1.0, 1e6, 100, 1.0, successive=False)
    slow_network = ThroughputModel(0.010, 0.001, 0.500, 0.0, 0.5, 0.0, 1.0)
    here = Configuration(1, 4, 8, 1)
    for tried in (here, here._replace(accumulation_steps=2)):
        one.record_time(tried, float(slow_network.step_s(*tried)))
    decision = one.decide(here._replace(accumulation_steps=2))
    assert decision is not None
    assert decision.local_bsz == 8
    assert decision.accumulation_steps == 4  # twice the measured size


def test_one_disturbed_measurement_changes_nothing() -> None:
    quiet, disturbed = scaler(), scaler()
    for one in (quiet, disturbed):
        one.noise.update(1.0, 500.0, 100, 1.0, successive=False)
        for _ in range(3):
            measured(one, Configuration(1, 4, 8, 1), Configuration(1, 4, 16, 1))
    disturbed.record_time(Configuration(1, 4, 16, 1), 60.0)
    assert disturbed.profile == quiet.profile


def test_the_state_goes_through_json_and_decides_alike() -> None:
    one = scaler()
    one.noise.update(1.0, 3000.0, 100, 1.0, successive=False)
    measured(one, Configuration(1, 4, 8, 1), Configuration(1, 4, 16, 1))
    copy = scaler()
    copy.load(json.loads(json.dumps(one.state())))
    here = Configuration(1, 4, 8, 1)
    assert copy.decide(here) == one.decide(here)
    assert copy.decide(here) is not None


def test_the_initial_batch_size_of_a_state_wins_and_must_fit() -> None:
    saved = Autoscaler(Limits(64, 1024, (1, 256))).state()
    one = scaler()
    one.load(saved)
    assert one.limits.initial_batch_size == 64
    with pytest.raises(ConfigError, match="max_batch_size must be >= 64, .*; got 48"):
        Autoscaler(Limits(32, 48, (1, 256))).load(saved)


@pytest.mark.parametrize(
    ("total", "ranks", "bounds", "steps", "expected"),
    [
        (64, 4, (1, 256), 1, (16, 1)),
        (64, 3, (1, 256), 1, (22, 1)),  # 66, no fewer than before
        (512, 1, (8, 128), 1, (128, 1)),  # as near as memory allows
        (512, 1, (8, 128), 8, (128, 4)),
        (40, 8, (8, 128), 4, (8, 1)),
        (1024, 3, (1, 1024), 1, (341, 1)),  # not over the maximum of 1024
    ],
)
def test_a_batch_size_is_placed_on_other_ranks(
    total: int, ranks: int, bounds: tuple[int, int], steps: int, expected: tuple[int, int]
) -> None:
    assert Autoscaler(Limits(32, 1024, bounds, steps)).place(total, ranks) == expected


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_timer_counts_whole_steps_after_a_warm_up() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    for _ in range(WARM_UP_STEPS):
        clock.now += 50.0
        timer.step()
    clock.now += 30.0
    timer.step()  # the clock starts here
    for _ in range(4):
        clock.now += 2.0
        timer.step()
    assert timer.take() == (4, 8.0)
    clock.now += 7.0  # the decision
    timer.resume()
    clock.now += 3.0
    timer.step()
    assert timer.take() == (1, 3.0)


def test_the_timer_leaves_out_what_is_no_step() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    for _ in range(WARM_UP_STEPS + 1):
        timer.step()
    clock.now += 1.0
    with timer.untimed():
        clock.now += 100.0
    clock.now += 1.0
    timer.step()
    timer.pause()  # an epoch ends
    clock.now += 1000.0
    timer.step()
    clock.now += 4.0
    timer.step()
    assert timer.take() == (2, 6.0)
    timer.warm_up()
    clock.now += 9.0
    timer.step()
    assert timer.take() == (0, 0.0)


def test_the_timer_waits_for_the_device_only_where_timing_begins_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = []
    cuda = SimpleNamespace(is_initialized=lambda: True, synchronize=lambda: waits.append(len(waits)))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, __spec__=None))
    timer = StepTimer(Clock())
    for _ in range(WARM_UP_STEPS + 50):
        timer.step()
    assert len(waits) == 1
    timer.take()
    assert len(waits) == 2
