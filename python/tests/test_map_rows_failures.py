"""Functions of rows that fail: bad samples, processes that end, hang or print, and functions that cannot be sent."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedstock as fs
from feedstock._rows import job, output, process, threads

OUTPUTS = {"x": fs.tensor("float32", (2,))}

#: The sample on which functions fail, and its row in the first batch, which is not shuffled.
BAD = 3


@pytest.fixture(scope="module")
def labels(imagenet):
    return fs.Dataset(imagenet).columns(["label"]).batch(10)


def good(row):
    return {"x": np.full(2, row["label"], np.float32)}


def failing(how):
    """Returns a function that does ``how()`` on sample BAD, which has the only label 1003."""

    def fn(row, rng):
        return how() if row["is_bad"] else good(row)

    return fn


@pytest.fixture(scope="module")
def marked(labels):
    """Adds the column is_bad, by the generator's only use that differs by sample."""
    bad = np.random.Generator(np.random.PCG64(np.random.SeedSequence([0, 0, 0, 0, BAD, 0, 0, 0]))).integers(
        2**62
    )
    return labels.map_rows(lambda row, rng: {"is_bad": bool(rng.integers(2**62) == bad)}, executor="thread")


def run(pipeline: fs.Pipeline, policy: str = "raise") -> tuple[dict[str, Any], fs.Loader]:
    """Returns the first batch and the loader, closed."""
    # Policies are native steps, and order among steps and functions does not matter.
    chosen = pipeline.on_error(policy, max_fraction=0.05)  # type: ignore[arg-type]
    loader = chosen.loader(output="numpy")
    try:
        return next(iter(loader)), loader
    finally:
        report, ledger = loader.skip_report(), loader.ledger()
        loader.close()
        loader.skip_report = lambda: report  # type: ignore[method-assign]
        loader.ledger = lambda: ledger  # type: ignore[method-assign]


def divide():
    return 1 / 0


def leave():
    raise SystemExit(3)


def interrupt():
    raise KeyboardInterrupt


def stop():
    raise StopIteration


def long_message():
    raise ValueError("x" * 100_000)


RAISED = {
    divide: "raised ZeroDivisionError:\nTraceback",
    leave: "raised SystemExit:\n",
    interrupt: "raised KeyboardInterrupt:\n",
    stop: "raised StopIteration:\n",
    long_message: "raised ValueError:\n",
}


@pytest.mark.parametrize("executor", ["process", "thread"])
@pytest.mark.parametrize("how", RAISED, ids=lambda how: how.__name__)
def test_what_is_raised_is_a_bad_sample_with_its_traceback(marked, how, executor):
    with pytest.raises(fs.SampleError) as raised:
        run(marked.map_rows(failing(how), outputs=OUTPUTS, executor=executor, num_workers=2))
    message = str(raised.value)
    assert f"sample {BAD} of epoch 0: map_rows(failing.<locals>.fn) {RAISED[how]}" in message
    assert f"in {how.__name__}" in message, "the traceback names the user's functions"
    assert "feedstock/_rows" not in message.partition("Traceback")[2], "and no others"
    assert len(message) < 4500
    assert raised.value.sample_id == BAD


WRONG = {
    "returned list, not a mapping of columns": [1],
    "returned the columns ['y'], and outputs are ['x']": {"y": np.zeros(2, np.float32)},
    "returned the columns ['x', 'y'], and outputs are ['x']": {"x": np.zeros(2, np.float32), "y": 1},
    "returned column 'x' as float32 [3], and outputs state float32 [2]": {"x": np.zeros(3, np.float32)},
    "returned column 'x' as float64 [2], and outputs state float32 [2]": {"x": np.zeros(2)},
    "returned column 'x' as float32 [], and outputs state float32 [2]": {"x": 0.5},
    "returned str (dtype <U5) for column 'x'": {"x": "hello"},
    "returned list for column 'x', which is not an array": {"x": [[1], [2, 3]]},
}


@pytest.mark.parametrize("message", WRONG)
def test_results_of_another_form_are_bad_samples(marked, message):
    result = WRONG[message]
    with pytest.raises(fs.SampleError) as raised:
        run(marked.map_rows(failing(lambda: result), outputs=OUTPUTS, num_workers=1))
    assert f"sample {BAD} of epoch 0" in str(raised.value)
    assert message in str(raised.value)


def test_a_number_that_does_not_fit(marked):
    declared = {"x": fs.tensor("uint8")}
    with pytest.raises(fs.SampleError, match="returned 300 for column 'x', which uint8 cannot hold"):
        run(
            marked.map_rows(
                lambda row, rng: {"x": 300 if row["is_bad"] else 3}, outputs=declared, num_workers=1
            )
        )


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_a_skipped_row_is_a_copy_of_its_nearest_good_row(marked, executor):
    mapped = marked.map_rows(failing(divide), outputs=OUTPUTS, executor=executor, num_workers=2)
    batch, loader = run(mapped, "skip")
    expected, _ = run(marked)
    assert batch["sample_ids"].tolist() == list(range(10))
    assert batch["valid"].tolist() == [row != BAD for row in range(10)]
    labels = expected["label"].copy()
    labels[BAD] = labels[BAD - 1]
    assert batch["label"].tolist() == labels.tolist()
    assert np.array_equal(batch["x"], np.stack([labels, labels], 1).astype(np.float32))
    assert not batch["is_bad"].any()
    report, ledger = loader.skip_report(), loader.ledger()
    assert report["count"] == 1
    (sample,) = report["samples"]
    assert (sample["sample_id"], sample["epoch"]) == (BAD, 0)
    assert "ZeroDivisionError" in sample["reason"]
    assert ledger is not None
    assert (ledger["substituted"], ledger["exact"]) == (1, True)


def test_a_batch_without_a_good_row_is_invalid_and_zero(labels):
    def never(row, rng):
        raise ValueError("never")

    mapped = labels.on_error("skip", max_fraction=1.0).map_rows(never, outputs=OUTPUTS, num_workers=1)
    with mapped.loader(output="numpy") as loader:
        for _ in range(2):  # results of the first batch must not show in the second
            batch = next(iter(loader))
            assert not batch["valid"].any()
            assert not batch["x"].any()
        assert loader.skip_report()["count"] == 20


def test_more_failures_than_max_fraction_are_an_error_and_lose_nothing(labels):
    def third(row, rng):
        if rng.random() < 0.3:
            raise ValueError("a third")
        return good(row)

    mapped = labels.map_rows(third, outputs=OUTPUTS, executor="thread")
    with mapped.on_error("skip", max_fraction=0.1).loader(output="numpy") as loader:
        counts = []
        with pytest.raises(
            fs.SampleError, match=r"this rank's 200 samples of epoch 0, more than max_fraction=0.1"
        ):
            for batch in loader:
                counts.append(int((~batch["valid"]).sum()))
        assert sum(counts) <= 20
        assert loader.skip_report()["count"] == sum(counts)
        assert loader.position == 10 * len(counts)
        with pytest.raises(fs.SampleError):  # the same batch
            next(iter(loader))
    with mapped.on_error("skip", max_fraction=0.5).loader(output="numpy") as loader:
        invalid = sum(int((~batch["valid"]).sum()) for batch in loader)
        ledger, report = loader.ledger(), loader.skip_report()
        assert ledger is not None
        assert invalid == ledger["substituted"] == report["count"] == len(report["samples"])
        assert 30 < invalid < 90
        loader.set_epoch(0)  # the same samples fail again, and count once
        assert sum(int((~batch["valid"]).sum()) for batch in loader) == invalid
        assert loader.skip_report()["count"] == invalid


def test_the_next_request_after_an_error_runs_the_batch_again(marked, tmp_path):
    def once(row, rng):
        if row["is_bad"] and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise OSError("the network")
        return good(row)

    with marked.map_rows(once, outputs=OUTPUTS, num_workers=2).loader(output="numpy") as loader:
        with pytest.raises(fs.SampleError, match="the network"):
            next(iter(loader))
        assert loader.position == 0
        assert sorted(sample for batch in loader for sample in batch["sample_ids"].tolist()) == list(
            range(200)
        )


DEATHS = {
    "ended with exit status 7": lambda: os._exit(7),
    "was killed by SIGKILL": lambda: os.kill(os.getpid(), 9),
    "was killed by SIGABRT": os.abort,
}


@pytest.mark.parametrize("end", DEATHS)
def test_a_process_that_ends_is_replaced_and_its_row_runs_again(marked, tmp_path, end, caplog):
    die = DEATHS[end]

    def dies_once(row, rng):
        if row["is_bad"] and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            die()
        return good(row)

    caplog.set_level(logging.WARNING, "feedstock.rows")
    batch, loader = run(marked.map_rows(dies_once, outputs=OUTPUTS, num_workers=2))
    expected, _ = run(marked.map_rows(lambda row, rng: good(row), outputs=OUTPUTS, num_workers=1))
    assert np.array_equal(batch["x"], expected["x"])
    assert batch["valid"].all()
    assert f"a process {end} while it ran sample {BAD} of epoch 0" in caplog.text
    assert loader.skip_report()["count"] == 0


@pytest.mark.parametrize("end", DEATHS)
def test_a_row_that_ends_two_processes_is_a_bad_sample(marked, end):
    mapped = marked.map_rows(failing(DEATHS[end]), outputs=OUTPUTS, num_workers=2)
    with pytest.raises(fs.SampleError, match="ended two processes") as raised:
        run(mapped)
    assert f"the second {end}" in str(raised.value)
    batch, loader = run(mapped, "skip")
    assert batch["valid"].tolist() == [row != BAD for row in range(10)]
    assert loader.skip_report()["count"] == 1


def test_only_the_process_that_was_asked_answers(marked, tmp_path):
    """A function that forks returns twice."""

    def forks(row, rng):
        if os.fork() == 0:
            time.sleep(0.05)  # returns after its parent
            return {"x": np.full(2, -1, np.float32)}
        return good(row)

    with marked.map_rows(forks, outputs=OUTPUTS, num_workers=2).loader(output="numpy") as loader:
        batches = [batch["x"].copy() for batch in loader]
    assert len(batches) == 20
    assert all((batch >= 0).all() for batch in batches)


def test_a_row_over_the_timeout_ends_its_process(marked, caplog):
    mapped = marked.map_rows(failing(lambda: time.sleep(600)), outputs=OUTPUTS, num_workers=2, timeout=0.3)
    begun = time.monotonic()
    batch, loader = run(mapped, "skip")
    assert time.monotonic() - begun < 30
    assert batch["valid"].tolist() == [row != BAD for row in range(10)]
    (sample,) = loader.skip_report()["samples"]
    assert "the row took more than timeout=0.3 s" in sample["reason"]


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_a_stuck_row_is_logged_and_waited_for(marked, executor, caplog, monkeypatch):
    monkeypatch.setattr(process, "STUCK_SECONDS", 0.5)
    monkeypatch.setattr(threads, "STUCK_SECONDS", 0.5)

    def slow():
        time.sleep(2.5)
        return {"x": np.zeros(2, np.float32)}

    caplog.set_level(logging.WARNING, "feedstock.rows")
    batch, _ = run(marked.map_rows(failing(slow), outputs=OUTPUTS, num_workers=2, executor=executor))
    assert batch["valid"].all()
    stuck = [record.getMessage() for record in caplog.records if "is stuck" in record.getMessage()]
    assert len(stuck) == 1
    assert f"sample {BAD} of epoch 0" in stuck[0]


def test_a_loader_closes_while_a_row_hangs(marked):
    loader = marked.map_rows(failing(lambda: time.sleep(600)), outputs=OUTPUTS, num_workers=2).loader(
        output="numpy"
    )

    def wait():
        with contextlib.suppress(job.ClosedError):
            next(iter(loader))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(2)
    begun = time.monotonic()
    loader._rows.stages[1].end()
    assert time.monotonic() - begun < 5
    waiting.join(10)
    assert not waiting.is_alive()
    loader.close()


def test_prints_are_logged_with_a_limit(marked, caplog):
    def prints(row, rng):
        if row["is_bad"]:
            print("a line of the function")
            for _ in range(30_000):
                print("y" * 1000)
        return good(row)

    caplog.set_level(logging.INFO, "feedstock.rows")
    with marked.map_rows(prints, outputs=OUTPUTS, num_workers=1).loader(output="numpy") as loader:
        assert len(list(loader)) == 20
    lines = [record.getMessage() for record in caplog.records if record.name == "feedstock.rows"]
    assert any(
        "map_rows(test_prints_are_logged_with_a_limit.<locals>.prints) in process" in line for line in lines
    )
    assert any("a line of the function" in line for line in lines)
    assert sum(line.endswith("y" * 1000) for line in lines) < 30_000 / 10
    dropped = sum(int(line.split(" printed ")[1].split()[0]) for line in lines if " printed " in line)
    shown = sum(line.endswith("y" * 1000) for line in lines)
    assert 30_000 - 100 <= dropped + shown <= 30_001


def test_output_without_line_ends_takes_no_memory(caplog):
    caplog.set_level(logging.INFO, "feedstock.rows")
    reader, writer = os.pipe()
    stream = output.Output(reader, logging.INFO, "map_rows(f)", 1)
    for _ in range(64):
        os.write(writer, b"z" * 50_000)
        assert stream.drain()
        assert len(stream._begun) <= output.LINE_BYTES
    os.write(writer, b"\nlast")
    os.close(writer)
    stream.drain()
    stream.finish()
    messages = [record.getMessage() for record in caplog.records]
    assert [message.removeprefix("map_rows(f) in process 1: ") for message in messages] == [
        "z" * 2000,
        "last",
    ]


def test_functions_that_cannot_be_sent_are_named(labels):
    lock = threading.Lock()

    def locked(row, rng):
        with lock:
            return good(row)

    with pytest.raises(fs.ConfigError, match=r"'lock' \(_thread.lock\)") as raised:
        labels.map_rows(locked, outputs=OUTPUTS).loader(output="numpy")
    assert "test_functions_that_cannot_be_sent_are_named.<locals>.locked" in str(raised.value)
    batch, _ = run(labels.map_rows(locked, outputs=OUTPUTS, executor="thread"))
    assert batch["valid"].all()


class Unloadable:
    def __call__(self, row, rng):
        return good(row)

    def __reduce__(self):
        return (int, ("not a number",))


def test_functions_that_do_not_load_elsewhere_are_named(labels):
    with pytest.raises(fs.ConfigError, match="a new process cannot load the function") as raised:
        run(labels.map_rows(Unloadable(), outputs=OUTPUTS, num_workers=1))
    assert "map_rows(Unloadable)" in str(raised.value)
    assert "invalid literal for int()" in str(raised.value)


class Crashing:
    def __call__(self, row, rng):
        return good(row)

    def __reduce__(self):
        return (os._exit, (5,))


def test_a_function_that_crashes_when_it_is_loaded_is_an_error(labels):
    with pytest.raises(fs.FeedstockError, match="ended with exit status 5"):
        run(labels.map_rows(Crashing(), outputs=OUTPUTS, num_workers=1))


def test_a_first_sample_that_fails_is_an_error_of_the_loader(labels):
    with pytest.raises(fs.ConfigError, match=r"on the first sample \(id 0\)") as raised:
        labels.map_rows(lambda row, rng: divide(), num_workers=1).loader(output="numpy")
    assert "in divide" in str(raised.value)
    with pytest.raises(fs.ConfigError, match="returned no columns"):
        labels.map_rows(lambda row, rng: {}, num_workers=1).loader(output="numpy")
    with pytest.raises(fs.ConfigError, match="ended two processes"):
        labels.map_rows(lambda row, rng: os._exit(1), num_workers=1).loader(output="numpy")


def test_options_that_contradict_each_other(labels, tmp_path):
    mapped = labels.map_rows(lambda row, rng: good(row), outputs=OUTPUTS, executor="thread")
    with pytest.raises(fs.ConfigError, match='map_rows needs output="numpy" or "torch"'):
        mapped.loader()
    with pytest.raises(fs.ConfigError, match="map_rows"):
        mapped.loader(output="numpy", device="cpu", static=True)
    with pytest.raises(fs.ConfigError, match="before map_python"):
        labels.map_python(dict).map_rows(lambda row, rng: good(row))
    with pytest.raises(fs.ConfigError, match='timeout needs executor="process"'):
        labels.map_rows(len, executor="thread", timeout=3)
    with pytest.raises(
        fs.ConfigError, match=r"inputs of map_rows\(.*\) must be columns \(.*label.*\); got 'labels'"
    ):
        labels.map_rows(lambda row, rng: good(row), inputs=["labels"], outputs=OUTPUTS).loader(output="numpy")
    for wrong in ({}, {"x": "float32"}, {"": IMAGE}, {"valid": IMAGE}, ["x"]):
        with pytest.raises(fs.ConfigError):
            labels.map_rows(len, outputs=wrong)
    for keywords in (
        {"executor": "fork"},
        {"num_workers": 0},
        {"timeout": 0},
        {"version": 3},
        {"inputs": "label"},
    ):
        with pytest.raises(fs.ConfigError, match=next(iter(keywords))):
            labels.map_rows(len, **keywords)
    with pytest.raises(TypeError, match="function of a row"):
        labels.map_rows(3)
    for dtype in ("bfloat16", "str", "object", None.__class__, "no_such"):
        with pytest.raises(fs.ConfigError, match="dtype"):
            fs.tensor(dtype)
    with pytest.raises(fs.ConfigError, match="a size of shape"):
        fs.tensor("float32", (3, -1))


IMAGE = fs.tensor("float32", (8, 8, 3))


def test_a_missing_column_is_an_error_before_rows_run(labels):
    with pytest.raises(fs.ConfigError, match=r"must be columns of the batch \(label"):
        run(labels.map_rows(lambda row, rng: good(row), inputs=["no_length"], outputs=OUTPUTS, num_workers=1))


def test_files_of_the_program_are_not_run_again(tmp_path, imagenet):
    """As in a notebook: the main program has no file that a process could import, and no guard against that."""
    if sys.version_info >= (3, 11):  # before, Python looks in the current folder first
        (tmp_path / "feedstock.py").write_text("raise SystemExit('this is not the package')")
    program = f"""
import sys
sys.path = [folder for folder in sys.path if folder]
import numpy as np
import feedstock as fs

print("once")
BASE = 5

class Helper:
    def add(self, value):
        return value + BASE

def fn(row, rng):
    return {{"x": Helper().add(np.int64(1))}}

loader = fs.Dataset({str(imagenet)!r}).columns(["label"]).batch(10).map_rows(fn, num_workers=2).loader(output="numpy")
print(sum(int(batch["x"].sum()) for batch in loader))
loader.close()
"""
    path = os.pathsep.join([str(Path(fs.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-"],
        input=program,
        text=True,
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["once", "1200"], done.stderr
