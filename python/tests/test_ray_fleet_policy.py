"""The decisions of a fleet, without a cluster: the number of workers, their nodes, and the next actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

import feedstock as fs

pytest.importorskip("ray")

from feedstock.ray.fleet.metrics import Metrics
from feedstock.ray.fleet.notices import remaining
from feedstock.ray.fleet.placement import choose, matches, without
from feedstock.ray.fleet.policy import Policy, Scaling
from feedstock.ray.fleet.spec import Timing
from feedstock.ray.fleet.state import Action, Drain, Exit, FleetState, Kill, Phase, Start
from feedstock.ray.fleet.waited import HOLD_SECONDS, WaitedShare


class Sizes:
    """A policy that is queried twice a second. Workers that it orders are ready ``delay`` seconds later."""

    def __init__(self, least: int, most: int, scaling: Scaling | None = None, delay: float = 0.0) -> None:
        self.policy = Policy(least, most, scaling or Scaling())
        self.now, self.delay = 0.0, delay
        self.ready = least
        self.ordered: list[float] = []

    def run(self, seconds: float, waited: Sequence[float] | Callable[[int], float]) -> list[int]:
        """Returns the policy's sizes without repeats. ``waited`` may depend on the number of ready workers."""
        sizes = [self.policy.size]
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            while self.ordered and self.ordered[0] <= self.now:
                self.ordered.pop(0)
                self.ready += 1
            shares = [waited(self.ready)] if callable(waited) else waited
            size = self.policy.target(self.now, shares, self.ready, len(self.ordered))
            self.ordered += [self.now + self.delay] * (size - self.ready - len(self.ordered))
            if size < self.ready + len(self.ordered):
                self.ordered = self.ordered[: max(0, size - self.ready)]
                self.ready = min(self.ready, size)
            if size != sizes[-1]:
                sizes.append(size)
        return sizes


def needs(workers: float) -> Callable[[int], float]:
    """Returns the waiting share of ranks that need ``workers`` workers. With fewer, they wait for the rest."""
    return lambda ready: max(0.0, 1 - ready / workers)


# Policy


def test_grows_after_ten_seconds_by_what_is_missing() -> None:
    sizes = Sizes(4, 100)
    assert sizes.run(9.5, [0.2]) == [4]
    assert sizes.run(2, [0.2]) == [4, 5]  # 4 / (1 - 0.2)
    sizes = Sizes(10, 100)
    assert sizes.run(11, [0.4]) == [10, 17]
    sizes = Sizes(10, 100)
    assert sizes.run(11, [0.06]) == [10, 11]


def test_an_empty_fleet_grows_and_empties_again() -> None:
    sizes = Sizes(0, 8, delay=5)
    assert sizes.run(60, needs(3))[-1] == 3
    assert sizes.run(4 * 60, [0.0])[-1] == 0
    assert Sizes(0, 8).run(60, [0.0]) == [0]
    assert Sizes(0, 0).run(60, [1.0]) == [0]


def test_at_most_doubles_at_once_and_never_passes_the_bounds() -> None:
    sizes = Sizes(1, 11)
    assert sizes.run(60, [1.0]) == [1, 2, 4, 8, 11]
    assert Sizes(3, 3).run(600, [1.0]) == [3]
    assert Sizes(3, 3).run(600, [0.0]) == [3]


def test_the_mean_over_ranks_and_time_counts() -> None:
    assert Sizes(4, 8).run(60, [0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]) == [4]
    sizes = Sizes(4, 8)
    assert sizes.run(9, [0.0]) == [4]
    assert sizes.run(1, [0.5]) == [4], "one slow second of ten is 5 %"


def test_finds_the_size_that_is_needed_and_rests_there() -> None:
    sizes = Sizes(1, 64, delay=5)
    assert sizes.run(300, needs(20.0))[-1] == 20
    assert sizes.ready == 20


def test_waits_for_what_it_asked_for_before_it_asks_for_more() -> None:
    sizes = Sizes(2, 64, delay=120)
    assert sizes.run(100, [0.9]) == [2, 4]
    assert sizes.ready == 2
    assert sizes.run(45, [0.9]) == [4, 8], "judged afresh, with four"


def test_shrinks_by_one_after_a_minute_without_waiting() -> None:
    sizes = Sizes(2, 8)
    sizes.policy = Policy(2, 8, Scaling(), size=5)
    sizes.ready = 5
    assert sizes.run(59, [0.0]) == [5]
    assert sizes.run(2, [0.0]) == [5, 4]
    assert sizes.run(300, [0.0]) == [4, 3, 2]
    sizes = Sizes(2, 8)
    sizes.policy, sizes.ready = Policy(2, 8, Scaling(), size=5), 5
    for _ in range(10):
        assert sizes.run(50, [0.0]) == [5]
        assert sizes.run(2, [0.006]) == [5], "one value above 0.5 % restarts the minute"


def test_between_two_sizes_it_comes_to_rest() -> None:
    """5 workers are too few, and with 6 no rank waits. Each time it returns to 6, it stays twice as long."""
    sizes = Sizes(1, 8)
    sizes.run(60, needs(5.5))
    changes = [len(sizes.run(1000, needs(5.5))) - 1 for _ in range(4)]
    assert changes[0] >= 4
    assert changes[-1] <= 2


def test_what_was_asked_for_in_vain_is_given_up_at_once() -> None:
    policy = Policy(1, 9, Scaling())
    for tick in range(21):
        policy.target(tick / 2, [0.9], 4, 0)
    assert policy.size == 8
    for tick in range(22, 142):
        policy.target(tick / 2, [0.0], 4, 4)
    assert policy.size == 8
    assert policy.target(72, [0.0], 4, 4) == 4


def test_nothing_known_changes_nothing() -> None:
    sizes = Sizes(4, 8)
    assert sizes.run(1000, []) == [4]
    assert sizes.run(9, [0.5]) == [4]
    assert sizes.run(1, []) == [4]
    assert sizes.run(9, [0.5]) == [4]


def test_settings_are_checked() -> None:
    for wrong in ({"out_share": 0.001}, {"growth": 1.0}, {"in_seconds": 2000.0}, {"out_seconds": 0.0}):
        with pytest.raises(fs.ConfigError, match="must be"):
            Scaling(**wrong)


# A rank's waiting share


def test_shares_of_a_rank() -> None:
    waited = WaitedShare()
    assert waited.look(-2, {}) is None
    assert waited.look(0, {"waited_seconds": 0.0, "samples": 4}) is None, (
        "prefetching: no batch was requested"
    )
    assert waited.look(2, {"waited_seconds": 1.0, "samples": 8}) == 0.5
    assert waited.look(4, {"waited_seconds": 1.0, "samples": 16}) == 0.0
    assert waited.look(6, {"waited_seconds": 1.0, "samples": 16}) == 0.0, "held"
    assert waited.look(14, {"waited_seconds": 11.0, "samples": 24}) == 1.0, (
        "one long wait, counted at its end"
    )
    assert waited.look(14 + HOLD_SECONDS + 1, {"waited_seconds": 11.0, "samples": 24}) is None
    assert waited.look(60, {"waited_seconds": 0.1, "samples": 8}) is None, "a new run"
    assert waited.look(62, {"waited_seconds": 0.2, "samples": 16}) == pytest.approx(0.05)
    slow_function = {"waited_seconds": 2.3, "waited_map_python_seconds": 2.0, "samples": 24}
    assert waited.look(64, slow_function) == pytest.approx(0.05), "workers do not run map_python's functions"
    spare = {"waited_seconds": 1.4, "waited_map_python_seconds": 0.0, "samples": 32, "spare_workers": 5}
    assert waited.look(66, spare) is None, "its ranks have all the workers that they use"
    assert waited.look(66, {**spare, "spare_workers": 0}) is not None


# Placement


def cpus(**free: float) -> dict[str, dict[str, float]]:
    return {node: {"CPU": amount} for node, amount in free.items()}


def test_spread_takes_the_node_with_the_fewest() -> None:
    free = cpus(a=8, b=2, c=1)
    assert choose(free, {"CPU": 2}, {}, "SPREAD") == "a"
    assert choose(free, {"CPU": 2}, {"a": 1}, "SPREAD") == "b"
    assert choose(free, {"CPU": 2}, {"a": 1, "b": 2}, "SPREAD") == "a"
    assert choose(free, {"CPU": 2}, {"a": 1}, "SPREAD", avoid=["b"]) == "a"


def test_pack_takes_the_node_with_the_most() -> None:
    free = cpus(a=8, b=2, c=1)
    assert choose(free, {"CPU": 2}, {}, "PACK") == "b", "the fullest that has room"
    assert choose(free, {"CPU": 2}, {"a": 1}, "PACK") == "a"
    assert choose(free, {"CPU": 1}, {"c": 1}, "PACK") == "c"


def test_no_room_is_rays_business() -> None:
    assert choose(cpus(a=1), {"CPU": 2}, {}, "PACK") is None
    assert choose(cpus(a=8), {"CPU": 2, "feedstock_worker": 1}, {}, "SPREAD") is None
    assert choose({}, {"CPU": 0}, {}, "SPREAD") is None
    left = without(cpus(a=3, b=1), "a", {"CPU": 2})
    assert left == cpus(a=1, b=1)
    assert choose(left, {"CPU": 2}, {}, "SPREAD") is None


def test_labels_that_a_selector_fits() -> None:
    labels = {"pool": "gpu", "zone": "a"}
    for selector, fits in [
        ({}, True),
        ({"pool": "gpu"}, True),
        ({"pool": "cpu"}, False),
        ({"pool": "!cpu"}, True),
        ({"pool": "!gpu"}, False),
        ({"zone": "in(a, b)"}, True),
        ({"zone": "!in(a,b)"}, False),
        ({"zone": "!in(b)"}, True),
        ({"missing": "x"}, False),
        ({"missing": "!x"}, True),
        ({"pool": "gpu", "zone": "b"}, False),
    ]:
        assert matches(labels, selector) is fits, selector


# The next actions


def state(least: int = 2, most: int = 8, **options: float) -> FleetState:
    policy = Policy(least, most, Scaling(), size=int(options.pop("size", 0)))
    given = {"lease_seconds": 60.0, "drain_seconds": 30.0, "now": 0.0, **options}
    return FleetState(policy, Timing(), **given)


def numbers(actions: Sequence[Action], kind: type) -> list[int]:
    return [action.number for action in actions if isinstance(action, kind)]


def serving(fleet: FleetState, nodes: str, now: float = 0.0) -> None:
    """Starts the requested workers on these nodes."""
    for number, node in zip(numbers(fleet.tick(now), Start), nodes, strict=True):
        fleet.placed(now, number, node)
        fleet.started(now, number, node, f"{node}:{number}")


def test_starts_as_many_as_there_should_be_once() -> None:
    fleet = state(3)
    assert numbers(fleet.tick(0), Start) == [1, 2, 3]
    assert fleet.tick(1) == []
    fleet.started(1, 2, "b", "b:1")
    assert (fleet.addresses, fleet.size) == (["b:1"], 3)


def test_a_lost_worker_is_replaced_elsewhere() -> None:
    fleet = state(2)
    serving(fleet, "ab")
    version = fleet.version
    fleet.beat(100, 2, {})
    fleet.gone(100, 1, "killed")
    assert fleet.addresses == ["b:2"]
    assert fleet.version != version
    fleet.renew(100, None, ())
    (start,) = fleet.tick(100)
    assert start == Start(3, frozenset("a"), False), "it had served before, so it is replaced at once"
    assert fleet.failure == "worker 1: killed"


def test_workers_of_a_leaving_node_hand_over_and_are_replaced_elsewhere() -> None:
    fleet = state(3)
    first, _, last = numbers(fleet.tick(0), Start)
    for number, node in [(first, "a"), (last, "b")]:
        fleet.placed(0, number, node)
    fleet.started(0, first, "a", "a:1")
    fleet.renew(100, None, ())
    fleet.leaving(100, {"a": 20.0, "b": math.inf})
    actions = fleet.tick(100)
    assert Drain(first, 10.0) in actions, "half of the 20 s"
    assert numbers(actions, Kill) == [last], "one that starts there has nothing to hand over"
    assert [action.avoid for action in actions if isinstance(action, Start)] == [frozenset("ab")] * 2
    assert (fleet.addresses, fleet.failure) == ([], None)
    fleet.leaving(101, {"a": 19.0, "b": math.inf})
    assert fleet.tick(101) == [], "once"
    assert remaining(0, 5e12) == math.inf
    assert remaining(5e12 + 30_000, 5e12) == 30.0
    assert remaining(5e12 - 1, 5e12) == 0.0


def test_workers_that_fail_at_once_are_started_ever_later() -> None:
    fleet = state(1)
    now, starts = 0.0, []
    while now < 100:
        fleet.renew(now, None, ())
        for number in numbers(fleet.tick(now), Start):
            starts.append(now)
            fleet.gone(now, number, "no such folder", refused=True)
        now += 0.5
    assert starts == [0, 1, 3, 7, 15, 31, 61, 91]
    assert fleet.refusal == "no such folder"


def test_a_silent_worker_is_replaced_and_told_to_go() -> None:
    fleet = state(2)
    serving(fleet, "ab")
    for now in range(1, 11):
        assert fleet.beat(now, 2, {"samples": now})
    assert fleet.tick(10) == []
    kill, start = fleet.tick(10.5)
    assert kill == Kill(1, "it was silent for 10 s")
    assert start == Start(3, frozenset("a"), False)
    assert not fleet.beat(30, 1, {})
    assert fleet.samples == 10


def test_a_worker_that_does_not_come_up_where_it_was_sent_may_go_anywhere() -> None:
    fleet = state(1)
    fleet.tick(0)
    fleet.placed(0, 1, "a")
    kill, start = fleet.tick(31)
    assert kill == Kill(1, "it did not start within 31 s")
    assert start == Start(2, frozenset(), True)
    fleet.placed(31, 2, None)
    for now in range(32, 1000):
        fleet.renew(now, None, ())
        assert fleet.tick(now) == [], "Ray may have to find a node first"


def test_shrinking_drains_from_the_node_that_is_soonest_idle() -> None:
    fleet = state(1, size=5)
    serving(fleet, "aabbc")
    drains = []
    for tick in range(1000):
        now = tick / 2
        fleet.renew(now, "rank", [0.0])
        for worker in fleet.workers:
            fleet.beat(now, worker.number, {})
        for number in numbers(fleet.tick(now), Drain):
            drains.append(number)
            assert number not in [w.number for w in fleet.workers if w.phase is Phase.SERVING]
            fleet.drained(number)
    assert drains == [5, 4, 3, 2]
    assert fleet.addresses == ["a:1"]


def test_a_worker_that_never_says_it_is_drained_is_killed() -> None:
    fleet = state(1, size=2)
    serving(fleet, "ab")
    kills = []
    for tick in range(250):
        now = tick / 2
        fleet.renew(now, "rank", [0.0])
        for worker in fleet.workers:
            fleet.beat(now, worker.number, {})
        kills += [(now, action) for action in fleet.tick(now) if isinstance(action, Kill)]
    ((when, kill),) = kills
    assert kill.number == 2
    assert 100 < when < 102, "after 60 s of calm, 30 s to drain and 10 s of patience"


def test_ranks_that_fell_silent_do_not_count() -> None:
    fleet = state()
    fleet.renew(0, "a", [0.5, 0.1])
    fleet.renew(0, "b", [0.0])
    assert sorted(fleet.waited) == [0.0, 0.1, 0.5]
    fleet.renew(8, "b", [])
    fleet.tick(11)
    assert (fleet.waited, fleet.ranks) == ([], 1)


def test_without_a_renewal_all_ends() -> None:
    fleet = state(2, 3)
    serving(fleet, "ab")
    fleet.renew(10, None, ())
    for worker in (1, 2):
        fleet.beat(69, worker, {})
    assert fleet.tick(70) == []
    assert sorted(numbers(fleet.tick(70.5), Drain)) == [1, 2]
    assert fleet.addresses == []
    fleet.drained(1)
    assert numbers(fleet.tick(71), Kill) == [1]
    fleet.gone(71, 2, "killed by us or not")
    assert fleet.tick(72) == [Exit("no process renewed the lease for 60 s")]
    assert fleet.tick(73) == [], "no new ones, and said once"


def test_an_end_drops_what_is_on_its_way() -> None:
    fleet = state(3)
    fleet.tick(0)
    fleet.started(1, 1, "a", "a:1")
    fleet.end(2, "it was shut down", drain_seconds=5)
    actions = fleet.tick(2)
    assert sorted(numbers(actions, Kill)) == [2, 3]
    assert [a for a in actions if isinstance(a, Drain)] == [Drain(1, 5)]
    fleet.drained(1)
    assert fleet.tick(3) == [Kill(1, None), Exit("it was shut down")]


def test_workers_of_before_a_restart_are_taken_over_or_replaced() -> None:
    fleet = state(1, 8, size=2)
    fleet.adopted(0, 7)
    fleet.adopted(0, 9)
    assert fleet.tick(0) == []
    fleet.started(1, 9, "a", "a:9")
    fleet.beat(15, 9, {})
    kill, start = fleet.tick(15.5)
    assert (kill.number, start.number) == (7, 10)


# Metrics


def test_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[str, float] = {}

    class Gauge:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            assert description
            assert tag_keys == ("fleet",)
            self.name = name

        def set_default_tags(self, tags: dict[str, str]) -> None:
            assert tags == {"fleet": "default"}

        def set(self, value: float) -> None:
            shown[self.name.removeprefix("feedstock_fleet_")] = value

    monkeypatch.setattr("ray.util.metrics.Gauge", Gauge)
    metrics = Metrics("default")
    metrics.publish(100, size=4, workers=3, streams=64, samples=5000, waited=[])
    assert shown == {"size": 4, "workers": 3, "streams": 64, "samples_per_second": 0}
    metrics.publish(102, size=4, workers=4, streams=64, samples=6000, waited=[0.5])
    assert shown["workers"] == 3, "once in five seconds"
    metrics.publish(110, size=4, workers=4, streams=70, samples=15000, waited=[0.2, 0.4])
    assert shown == {
        "size": 4,
        "workers": 4,
        "streams": 70,
        "samples_per_second": 1000,
        "waited_share": pytest.approx(0.3),
    }
