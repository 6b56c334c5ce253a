"""Sums over ranks and restarts, exact to the last bit."""

from __future__ import annotations

import itertools
import json
import math
import random
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from feedstock import ConfigError
from feedstock.adaptive import Accumulator, Alone, ExactSum


class Threads:
    """An exchange between threads, each of which plays a rank."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.box: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=30)

    def of(self, rank: int) -> Threads._Of:
        return Threads._Of(self, rank)

    class _Of:
        def __init__(self, all_: Threads, rank: int) -> None:
            self.all, self.rank, self.size = all_, rank, all_.size

        def all_gather(self, value: Any) -> list[Any]:
            self.all.box[self.rank] = value
            self.all.barrier.wait()
            values = list(self.all.box)
            self.all.barrier.wait()
            return values

        def broadcast(self, value: Any) -> Any:
            return self.all_gather(value)[0]


def on_ranks(size: int, program: Callable[[Any], Any]) -> list[Any]:
    exchange = Threads(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = program(exchange.of(rank))
        except BaseException as error:
            results[rank] = error
            exchange.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def numbers(count: int) -> list[float]:
    r = random.Random(5)
    tiny = [5e-324, -5e-324, 2.2e-308, 1.7e308, -1.7e308, 0.0, -0.0]
    return tiny + [r.uniform(-1, 1) * 10.0 ** r.randint(-20, 20) for _ in range(count - len(tiny))]


def test_a_sum_is_the_rounded_true_sum_in_any_order() -> None:
    values = numbers(300)
    truth = float(sum(map(Fraction, values)))
    assert sum(values) != truth  # plain floats are inexact, so this test proves something
    for seed in range(5):
        random.Random(seed).shuffle(values)
        total = ExactSum()
        for value in values:
            total.add(value)
        assert total.value == truth == math.fsum(values)


def test_a_sum_of_integers_is_an_integer() -> None:
    total = ExactSum()
    for value in (2**70, -1, True):
        total.add(value)
    assert total.value == 2**70
    assert isinstance(total.value, int)
    total.add(0.5)
    assert total.value == float(2**70)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([math.inf, 1.0], math.inf),
        ([-math.inf], -math.inf),
        ([math.nan, 1.0], math.nan),
        ([math.inf, -math.inf], math.nan),
    ],
)
def test_what_is_not_finite_shows(values: list[float], expected: float) -> None:
    total = ExactSum()
    for value in values:
        total.add(value)
    assert total.value == expected or (math.isnan(expected) and math.isnan(total.value))


def test_a_total_beyond_floats_is_infinite_until_it_comes_back() -> None:
    total = ExactSum()
    total.add(1.7e308)
    total.add(1.7e308)
    assert total.value == math.inf
    total.add(-1.7e308)
    assert total.value == 1.7e308


@pytest.mark.parametrize("value", [0, 0.0, 1, -3, 0.1, -5e-324, 1.7e308, 2**80])
def test_a_sum_survives_its_state(value: float) -> None:
    total = ExactSum()
    total.add(value)
    state = json.loads(json.dumps(total.state()))
    assert ExactSum.of_state(state).value == value
    assert type(ExactSum.of_state(state).value) is type(value)
    assert len(json.dumps(state)) < 60


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_totals_do_not_depend_on_the_ranks_nor_on_restarts(ranks: int) -> None:
    values = numbers(120)
    truth = math.fsum(values)

    def first(exchange: Any) -> dict[str, Any]:
        sums = Accumulator(exchange)
        for value in values[:60][exchange.rank :: exchange.size]:
            sums.add(loss=value, rows=1)
        sums.sync()
        return sums.state_dict()

    states = on_ranks(ranks, first)
    assert all(state == states[0] for state in states)
    saved = json.dumps(states[0])

    def second(exchange: Any) -> dict[str, Any]:
        sums = Accumulator(exchange)
        sums.load_state_dict(json.loads(saved))
        for value in values[60:][exchange.rank :: exchange.size]:
            sums.add(loss=value, rows=1)
        return sums.totals()

    for totals in itertools.chain(on_ranks(ranks, second), on_ranks(4, second)):
        assert totals == {"loss": truth, "rows": 120}


def test_a_name_that_only_some_ranks_use_is_in_all_totals() -> None:
    def program(exchange: Any) -> dict[str, Any]:
        sums = Accumulator(exchange)
        if exchange.rank == 1:
            sums.add(skipped=3)
        first = sums.totals()
        assert sums.totals() == first  # reading twice does not add twice
        sums.reset()
        assert sums.totals() == {}
        return first

    assert on_ranks(3, program) == [{"skipped": 3}] * 3


def test_a_state_that_would_lose_other_ranks_additions_is_refused() -> None:
    def program(exchange: Any) -> None:
        sums = Accumulator(exchange)
        sums.add(loss=1.0)
        with pytest.raises(ConfigError, match=r"loss.*call sync\(\) on every rank"):
            sums.state_dict()
        sums.sync()
        assert sums.state_dict()["totals"]["loss"] == sums.state_dict()["totals"]["loss"]

    on_ranks(2, program)


def test_one_process_needs_no_sync() -> None:
    sums = Accumulator(Alone())
    sums.add(loss=1.5)
    copy = Accumulator()
    copy.load_state_dict(sums.state_dict())
    assert copy.totals() == {"loss": 1.5}


def test_tensors_and_numpy_scalars_are_numbers_and_text_is_not() -> None:
    torch = pytest.importorskip("torch")
    sums = Accumulator()
    sums.add(a=torch.tensor(2.5), b=torch.tensor([3]), c=np.float32(0.5), d=np.int64(7))
    sums.update({"a b": 1})
    assert sums.totals() == {"a": 2.5, "a b": 1, "b": 3, "c": 0.5, "d": 7}
    for wrong in ("1.0", None, [1.0]):
        with pytest.raises(ConfigError, match="x must be an int, a float or a tensor of one element; got "):
            sums.add(y=1, x=wrong)
    assert "y" not in sums.totals()  # rejected as a whole


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="version of an accumulator state must be 1; got 2"):
        Accumulator().load_state_dict({"version": 2, "totals": {}})
