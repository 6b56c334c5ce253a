"""The caller's functions on batches: order, threads, state, failures."""

from __future__ import annotations

import gc
import threading
import time

import pytest

import feedstock as fs


@pytest.fixture(scope="module")
def raw(imagenet):
    return fs.Dataset(imagenet).columns(["label"]).shuffle(seed=3).batch(10)


def test_results_come_in_order_and_functions_run_one_after_another(raw):
    plain = [b.sample_ids.tolist() for b in raw.loader()]

    def slow(batch):
        time.sleep(0.02 if batch.position % 20 else 0.0)
        return batch.sample_ids.tolist()

    pipeline = raw.map_python(slow, num_threads=3).map_python(lambda ids: [*ids, "end"])
    assert list(pipeline.loader()) == [[*ids, "end"] for ids in plain]


def test_functions_run_beside_each_other_on_their_threads(raw):
    barrier = threading.Barrier(3, timeout=60)  # passes only if three run at once

    def meet(batch):
        if batch.position < 180:
            barrier.wait()
        return threading.current_thread().name

    names = list(raw.map_python(meet, num_threads=3).loader())
    assert len(set(names[:18])) == 3
    assert all(name.startswith("feedstock-map") for name in names)


def test_functions_run_while_the_caller_works(raw):
    """Batches that have arrived are processed before they are requested: the next function ends with the step."""
    running = threading.Event()

    def function(batch):
        if batch.position > 0:
            running.set()
        return batch.position

    results = iter(raw.map_python(function).loader())
    assert next(results) == 0
    if not running.wait(0):  # the second batch has not arrived yet: it is taken with the next result
        assert next(results) == 10
    assert running.wait(30)


def test_a_function_of_one_thread_runs_serially_and_in_order(raw):
    """This holds for any number of threads of the functions around it."""
    running, most, seen, names = set(), [], [], set()

    def spread(batch):
        time.sleep(0.001 * ((batch.position * 7) % 50) / 10)  # ends in another order than it starts
        return batch.position

    def serial(position):
        running.add(position)
        most.append(len(running))
        seen.append(position)
        names.add(threading.current_thread().name)
        time.sleep(0.002)
        running.discard(position)
        return position

    pipeline = raw.map_python(spread, num_threads=6).map_python(serial, num_threads=1)
    pipeline = pipeline.map_python(lambda position: position, num_threads=4)
    assert list(pipeline.loader()) == list(range(0, 200, 10))
    assert max(most) == 1
    assert seen == list(range(0, 200, 10))
    assert len(names) == 1


def test_every_function_has_the_threads_that_it_asked_for(raw):
    """Both functions meet at their barriers at the same time: 2 + 3 batches are in functions, so the slots suffice."""
    first, second = threading.Barrier(2, timeout=60), threading.Barrier(3, timeout=60)

    def pairs(batch):
        first.wait()
        return batch

    def triples(batch):
        if batch.position < 180:  # 20 batches: 6 × 3 meet
            second.wait()
        return batch.position

    pipeline = raw.map_python(pairs, num_threads=2).map_python(triples, num_threads=3)
    assert list(pipeline.loader()) == list(range(0, 200, 10))
    assert pipeline.loader()._ahead.depth == 2 + 3 + 1


def test_a_slow_function_shows_as_waiting(raw):
    def slow(batch):
        time.sleep(0.05)
        return batch.position

    with raw.epochs(1).map_python(slow).loader() as loader:
        results = iter(loader)
        begun = time.perf_counter()
        assert len(list(results)) == 20
        elapsed = time.perf_counter() - begun
        stats = loader.stats()
    assert stats["waited_seconds"] == pytest.approx(elapsed, rel=0.15)
    assert stats["waited_map_python_seconds"] > 20 * 0.05 * 0.9
    assert stats["waited_map_python_seconds"] <= stats["waited_seconds"]


def test_a_slow_caller_does_not_wait_for_functions(raw):
    with raw.epochs(1).map_python(lambda batch: batch.position).loader() as loader:
        for _ in loader:
            time.sleep(0.02)
        stats = loader.stats()
    assert stats["waited_map_python_seconds"] < 0.2


def test_a_failure_in_a_later_function_comes_in_its_turn(raw):
    def fails(position):
        if position == 50:
            raise ZeroDivisionError("later")
        return position

    pipeline = raw.map_python(lambda b: b.position, num_threads=3).map_python(fails, num_threads=2)
    loader, seen = pipeline.loader(), []
    with pytest.raises(ZeroDivisionError, match="later"):
        for position in loader:
            seen.append(position)
    assert seen == [0, 10, 20, 30, 40]
    assert loader.position == 50


def _first(pipeline, count):
    with pipeline.loader() as loader:
        results = []
        for result in loader:
            results.append(result)
            if len(results) == count:
                return results
    return results


def test_the_state_counts_results_handed_out(raw):
    loader = raw.map_python(lambda b: b.sample_ids.tolist(), num_threads=4).loader()
    results = iter(loader)
    first = [next(results) for _ in range(3)]
    state = loader.state_dict()
    assert state["position"] == 30
    other = raw.map_python(lambda b: b.sample_ids.tolist(), num_threads=2).loader()
    other.load_state_dict(state)
    rest = list(other)
    assert sorted(s for batch in first + rest for s in batch) == list(range(200))
    assert list(loader) == rest


def test_the_state_counts_results_of_two_functions(raw):
    """At every step, batches that a function has seen but the caller has not do not count as delivered."""

    def pipeline():
        return raw.map_python(lambda b: b.sample_ids.tolist(), num_threads=3).map_python(list, num_threads=2)

    whole = list(pipeline().loader())
    for steps in (1, 2, 7, 19):
        loader = pipeline().loader()
        results = iter(loader)
        assert [next(results) for _ in range(steps)] == whole[:steps]
        state = loader.state_dict()
        assert state["position"] == 10 * steps
        other = pipeline().loader()
        other.load_state_dict(state)
        assert list(other) == whole[steps:]
        assert list(results) == whole[steps:]
        for done in (loader, other):
            done.close()


def test_epochs_follow_each_other_for_those_who_count(raw):
    loader = raw.map_python(lambda b: b.epoch, num_threads=3).loader()
    epochs = []
    for _ in range(3):
        results = iter(loader)
        epochs.append([next(results) for _ in range(len(loader))])
    assert epochs == [[0] * 20, [1] * 20, [2] * 20]
    assert list(loader) == [3] * 20


def test_a_failing_function_loses_nothing(raw):
    broken = {"once": True}

    def fails(batch):
        if batch.position == 50 and broken.pop("once", False):
            raise ZeroDivisionError("mine")
        return batch.position

    loader = raw.map_python(fails, num_threads=2).loader()
    seen = []
    with pytest.raises(ZeroDivisionError, match="mine"):
        for position in loader:
            seen.append(position)
    assert seen == [0, 10, 20, 30, 40]
    assert loader.position == 50
    assert list(loader) == list(range(50, 200, 10))


def test_a_refused_move_loses_nothing(raw):
    loader = raw.map_python(lambda b: b.position, num_threads=3).epochs(2).loader()
    results = iter(loader)
    assert [next(results), next(results)] == [0, 10]
    state = loader.state_dict()
    refused = (
        lambda: loader.set_epoch(7),
        lambda: loader.set_epoch(-1),
        lambda: loader.seek(20),
        lambda: loader.load_state_dict({**state, "cursor": "{}"}),
        lambda: loader.reconfigure(rank=0, world_size=200),
    )
    for number, move in enumerate(refused):
        with pytest.raises(fs.ConfigError):
            move()
        assert next(results) == 20 + 10 * number


def test_a_bad_sample_comes_in_its_turn(imagenet):
    narrow = fs.Dataset(imagenet).sql("select min(width * height) as least from catalog")
    import pyarrow

    pixels = pyarrow.table(narrow).column("least")[0].as_py()
    data = fs.Dataset(imagenet).filter(f"width * height <= {pixels * 2}")
    good = data.filter(f"width * height <= {pixels}")
    mixed = data.map("image", fs.decode_image(max_pixels=pixels), fs.resize((8, 8))).batch(1)
    plain, mapped = [], []
    for pipeline, seen in ((mixed, plain), (mixed.map_python(lambda b: b, num_threads=4), mapped)):
        loader = pipeline.loader()
        with pytest.raises(fs.SampleError):
            for batch in loader:
                seen.append(batch.sample_ids.tolist())
        assert loader.position == len(seen)
    assert len(good) >= 1
    assert mapped == plain


def test_a_forked_child_gets_none_of_the_parents_batches(imagenet):
    import subprocess
    import sys
    import textwrap

    code = """
        import os, sys, feedstock as fs
        pipeline = fs.Dataset(sys.argv[1]).columns(["label"]).batch(10)
        loader = pipeline.map_python(lambda b: b.position, num_threads=4).loader()
        results = iter(loader)
        next(results)
        if os.fork() == 0:
            try:
                print("child", next(results), flush=True)
            except fs.ForkError:
                print("child got a ForkError", flush=True)
            os._exit(0)
        os.wait()
        print("parent", list(results), flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(imagenet)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["child got a ForkError", f"parent {list(range(10, 200, 10))}"]


def test_close_does_not_wait_for_a_function_that_never_returns(raw, monkeypatch):
    monkeypatch.setattr("feedstock._ahead._CLOSE", 0.2)
    begins, held = threading.Event(), threading.Event()

    def stuck(position):
        if position == 30:
            begins.set()
            held.wait()
        return position

    loader = raw.map_python(lambda batch: batch.position).map_python(stuck).loader()
    results = iter(loader)
    assert [next(results) for _ in range(3)] == [0, 10, 20]
    assert begins.wait(20)
    begun = time.perf_counter()
    with pytest.warns(RuntimeWarning, match="map_python: .*stuck.* is still running 0.2 s after"):
        loader.close()
    assert time.perf_counter() - begun < 5
    held.set()
    assert next(iter(loader)) == 30
    loader.close()


def test_a_process_ends_while_a_function_never_returns(imagenet):
    import subprocess
    import sys
    import textwrap

    code = """
        import sys, time, feedstock as fs, feedstock._ahead
        feedstock._ahead._CLOSE = 0.2
        pipeline = fs.Dataset(sys.argv[1]).columns(["label"]).batch(10)
        loader = pipeline.map_python(lambda batch: time.sleep(3600) if batch.position else 0).loader()
        print(next(iter(loader)), flush=True)
        time.sleep(1)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(imagenet)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "0\n"
    assert "is still running 0.2 s after its loader was closed" in done.stderr


def test_close_before_the_first_batch_and_twice(raw):
    loader = raw.map_python(lambda batch: batch.position, num_threads=2).loader()
    loader.close()
    assert next(iter(loader)) == 0
    loader.close()
    loader.close()
    with raw.map_python(lambda batch: batch.position).loader() as unused:
        assert unused.epoch == 0


def test_threads_end_with_a_loader_that_is_not_closed(raw):
    before = set(threading.enumerate())

    def threads():
        alive = set(threading.enumerate()) - before
        return [thread for thread in alive if thread.name.startswith("feedstock-map-")]

    loader = raw.map_python(lambda batch: batch.position, num_threads=3).loader()
    assert next(iter(loader)) == 0
    assert len(threads()) == 3
    del loader
    deadline = time.monotonic() + 20
    while threads() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert threads() == []


def test_moving_drops_what_was_ahead(raw):
    loader = raw.map_python(lambda b: (b.epoch, b.position), num_threads=3).loader()
    assert next(iter(loader)) == (0, 0)
    loader.seek(7)
    assert next(iter(loader)) == (0, 70)
    loader.reconfigure(batch_size=20)
    assert next(iter(loader)) == (0, 80)
    assert next(iter(loader)) == (0, 100)
    loader.set_epoch(2)
    assert next(iter(loader)) == (2, 0)
    loader.close()
    assert next(iter(loader)) == (2, 20)


def test_outputs_are_what_functions_get(raw):
    torch = pytest.importorskip("torch")
    keys = list(_first(raw.map_python(lambda batch: type(batch["label"])), 1))
    assert keys == [fs.Tensor]
    loader = raw.map_python(lambda batch: batch["label"]).loader(output="torch")
    assert isinstance(next(iter(loader)), torch.Tensor)


def test_what_is_no_function_or_thread_is_refused(raw):
    with pytest.raises(TypeError, match="function"):
        raw.map_python(3)
    with pytest.raises(fs.ConfigError, match="num_threads"):
        raw.map_python(len, num_threads=0)


def test_a_function_may_return_nothing_or_anything(raw):
    import numpy as np

    assert list(raw.map_python(lambda batch: None).loader()) == [None] * 20
    assert len(list(raw.map_python(lambda batch: np.zeros(3)).loader())) == 20
    loader = raw.map_python(next_of_nothing).loader()
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iter(loader))


def next_of_nothing(batch):
    return next(iter(()))
