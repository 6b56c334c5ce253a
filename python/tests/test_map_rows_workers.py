"""Functions of rows on workers: the same bytes as on the rank, and workers and functions that refuse or fail."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import TOKEN, Process
from served import coder as worker
from served import worker as in_process
from synthetic import synth

import feedstock as fs

cloudpickle = pytest.importorskip("cloudpickle")

GIB = 1 << 30


@pytest.fixture(scope="module", autouse=True)
def _code_travels() -> Iterator[None]:
    """Sends functions of this module by value, since workers cannot import it; and gives all the token."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEEDSTOCK_TOKEN", TOKEN)  # of ranks and workers
        yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def serving(imagenet: Path) -> Iterator[Process]:
    with worker(imagenet) as process:
        yield process


@pytest.fixture(scope="module")
def plain(imagenet: Path) -> fs.Pipeline:
    images = (
        fs.Dataset(imagenet).columns(["image", "label"]).map("image", fs.decode_image(), fs.resize((8, 8)))
    )
    return images.shuffle(seed=3).batch(global_batch_size=20)


def jittered(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    gain = np.float32(rng.uniform(0.5, 1.5))
    return {"image": row["image"].astype(np.float32) * gain, "gain": gain}


def jittered_somewhere(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**jittered(row, rng), "parent": np.int64(os.getppid())}


def placed(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """States where it runs."""
    return {"is_there": os.environ.get("PLACE") == "worker", "parent": os.getppid()}


@pytest.fixture(scope="module")
def expected(plain: fs.Pipeline) -> list[dict[str, Any]]:
    """Returns two epochs of ``jittered``, run in this process."""
    return batches(plain.map_rows(jittered, executor="thread"), 2)


def batches(pipeline: fs.Pipeline, epochs: int = 1, **options: Any) -> list[dict[str, Any]]:
    with pipeline.loader(output="numpy", **options) as loader:
        return [{**batch} for _ in range(epochs) for batch in loader]


def assert_same(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for name, column in one.items():
            if isinstance(column, np.ndarray):
                assert (column.dtype, column.shape) == (other[name].dtype, other[name].shape), name
                assert column.tobytes() == other[name].tobytes(), name
            else:
                assert column == other[name], name


def test_workers_run_functions_with_the_same_bytes(plain, serving, expected):
    mapped = plain.map_rows(jittered, executor="worker")
    assert_same(expected, batches(mapped, 2, workers=serving.address))
    assert_same(expected[:10], batches(mapped))  # without workers
    for batch in batches(plain.map_rows(placed, executor="worker"), workers=serving.address):
        assert batch["is_there"].all()
        assert set(batch["parent"].tolist()) == {serving.process.pid}


def test_torch_gets_tensors(plain, serving):
    torch = pytest.importorskip("torch")
    with plain.map_rows(jittered, executor="worker").loader(
        output="torch", workers=serving.address
    ) as loader:
        batch = next(iter(loader))
    assert (batch["image"].dtype, batch["image"].shape) == (torch.float32, (20, 8, 8, 3))
    batch["image"].add_(1)  # it may be written


def test_functions_of_other_executors_follow(plain, serving):
    def doubled(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"double": row["gain"] * 2, "draw": rng.random()}

    mapped = plain.map_rows(jittered, executor="worker").map_rows(doubled, executor="thread")
    mapped = mapped.map_python(lambda batch: {**batch, "sum": batch["double"].sum()})
    assert_same(batches(mapped), batches(mapped, workers=serving.address))
    with pytest.raises(fs.ConfigError, match='executor="worker" must come before'):
        plain.map_rows(doubled, executor="thread").map_rows(jittered, executor="worker").loader(
            output="numpy", workers=serving.address
        )


def test_lost_workers_and_the_ranks_own_processes_change_nothing(imagenet, plain, serving, expected):
    outputs = {"image": fs.tensor("float32", (8, 8, 3)), "gain": fs.tensor("float32")}
    mapped = plain.map_rows(jittered, executor="worker", outputs=outputs, num_workers=1)
    outputs["parent"] = fs.tensor("int64")
    placing = plain.map_rows(jittered_somewhere, executor="worker", outputs=outputs, num_workers=1)
    has_served = False
    with worker(imagenet) as lost:
        found = []
        workers = fs.Workers([serving.address, lost.address])
        with placing.loader(output="numpy", workers=workers) as loader:
            for _ in range(2):
                for batch in loader:
                    found.append({**batch})
                    if lost.process.pid in found[-1].pop("parent") and not has_served:
                        has_served = True
                        lost.process.kill()
                    if not has_served:
                        time.sleep(0.3)  # the other worker may serve alone until this one is ready
    assert has_served
    assert_same(expected, found)
    shared = fs.Workers(serving.address, local="share")
    assert_same(expected, batches(mapped, 2, workers=shared))
    nobody = fs.Workers("127.0.0.1:9", local="fallback")
    assert_same(expected[:10], batches(mapped, workers=nobody))


def test_a_row_that_is_stuck_leaves_the_worker_to_others(imagenet, plain, expected, tmp_path):
    stuck = tmp_path / "stuck"

    def hanging(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        stuck.touch()
        time.sleep(600)
        return {}

    outputs = {"value": fs.tensor("float32")}
    mapped = plain.map_rows(hanging, executor="worker", outputs=outputs, num_workers=1)
    with worker(imagenet) as process:
        with mapped.loader(output="numpy", workers=process.address) as loader:
            loader.start_prefetch()
            pause_until(stuck.exists)
        pause_until(lambda: not has_children(process.process.pid))
        others = plain.map_rows(jittered, executor="worker")
        assert_same(expected[:10], batches(others, workers=process.address))


def pause_until(is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_done():
        assert time.monotonic() < until
        time.sleep(0.05)


def has_children(pid: int) -> bool:
    found = ""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += path.read_text()
    return bool(found.strip())


def described(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns a checksum of all that a function can see of its row."""
    facts = []
    for name, value in sorted(row.items()):
        if isinstance(value, (np.ndarray, np.generic)):
            facts.append(
                (name, type(value).__name__, value.dtype.str, value.shape, zlib.crc32(value.tobytes()))
            )
        else:
            facts.append((name, type(value).__name__, repr(value)))
    if isinstance(row["audio"], np.ndarray):
        row["audio"][:1] = 0  # a copy that may be written
    return {"seen": np.uint32(zlib.crc32(repr(facts).encode())), "draw": rng.random()}


def again(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"draw": np.int8([rng.integers(100), row["draw"] * 100]), "is_even": row["seen"] % 2 == 0}


def test_functions_get_the_same_rows_of_sounds_texts_and_numbers(common_voice):
    speech = (
        fs.Dataset(common_voice, split="validated")
        .take(32)
        .map("audio", fs.decode_audio(), fs.resample(8000))
    )
    pipeline = speech.shuffle(seed=5).batch(8).map_rows(described, executor="worker")
    pipeline = pipeline.map_rows(again, inputs=["draw", "seen"], executor="worker")
    expected = batches(pipeline)
    assert len({seen for batch in expected for seen in batch["seen"].tolist()}) == 8 * len(expected) > 20
    with worker(common_voice) as process:
        assert_same(expected, batches(pipeline, workers=process.address))


def failing(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    if rng.random() < 0.02:
        raise ValueError("too dark")
    return {"value": rng.random()}


def test_a_function_that_raises_makes_bad_samples(plain, serving):
    mapped = plain.map_rows(failing, outputs={"value": fs.tensor("float64")}, executor="worker")
    with pytest.raises(fs.SampleError, match="(?s)sample .* map_rows.failing. raised ValueError") as raised:
        batches(mapped, workers=serving.address)
    assert "too dark" in str(raised.value)
    assert 'raise ValueError("too dark")' in str(raised.value)
    with pytest.raises(fs.SampleError) as here:
        batches(mapped)
    assert raised.value.sample_id == here.value.sample_id
    skipping = mapped.on_error("skip", max_fraction=0.1)
    with skipping.loader(output="numpy", workers=serving.address) as loader:
        found = list(loader)
        report, ledger = loader.skip_report(), loader.ledger()
    assert_same(batches(skipping), found)
    bad = sum(int((~batch["valid"]).sum()) for batch in found)
    assert bad == report["count"] == ledger["substituted"] > 0
    assert all("too dark" in sample["reason"] for sample in report["samples"])


def marked(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"value": row["value"] + rng.random()}


def test_rows_that_failed_before_are_left_out_of_functions(tmp_path):
    data = tmp_path / "pictures"
    synth("imagenet", data, "--samples", 40, "--seed", 1, "--layout", "folder")
    for damaged in sorted(data.rglob("*.JPEG"))[4:30:5]:
        damaged.write_bytes(damaged.read_bytes()[:40])
    images = fs.Dataset(data).map("image", fs.decode_image(), fs.resize((8, 8))).shuffle(seed=3)
    images = images.batch(global_batch_size=10).on_error("skip", max_fraction=0.9)
    outputs = {"value": fs.tensor("float64")}

    def twice(executor: str) -> fs.Pipeline:
        first = images.map_rows(sometimes, outputs=outputs, executor=executor)
        return first.map_rows(marked, outputs=outputs, executor=executor)

    expected = batches(twice("thread"), 2)
    bad = 0
    for batch in expected:
        good = np.flatnonzero(batch["valid"])
        for row in np.flatnonzero(~batch["valid"]):
            near = good[np.argmin(abs(good - row))]
            assert batch["value"][row] == batch["value"][near]
            assert np.array_equal(batch["image"][row], batch["image"][near])
            bad += 1
    assert bad > 2 * 6  # images that are damaged, and rows on which the function raises
    assert_same(expected, batches(twice("process"), 2))
    with worker(data) as process:
        assert_same(expected, batches(twice("worker"), 2, workers=process.address))


def sometimes(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    if rng.random() < 0.1:
        raise ValueError("too dark")
    return {"value": rng.random()}


def test_a_worker_without_permission_refuses(imagenet, plain, serving, expected):
    mapped = plain.map_rows(jittered, executor="worker")
    refusing = in_process(imagenet)
    try:
        with pytest.raises(fs.ConfigError, match=r"map_rows\(jittered\).*worker --allow-code"):
            batches(mapped, workers=refusing.address)
        on_the_rank = plain.map_rows(jittered, executor="thread")
        assert_same(expected[:10], batches(on_the_rank, workers=refusing.address))
        assert_same(expected[:10], batches(mapped, workers=f"{refusing.address},{serving.address}"))
    finally:
        refusing.stop()


def test_a_function_that_a_worker_cannot_load_is_named(imagenet, plain, serving, tmp_path, monkeypatch):
    (tmp_path / "of_the_rank.py").write_text("def fn(row, rng):\n    return {'x': row['label']}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import of_the_rank  # type: ignore[import-not-found]

    mapped = plain.map_rows(of_the_rank.fn, executor="worker")
    with pytest.raises(
        fs.ConfigError, match=r"(?s)map_rows\(fn\).*cannot load.*No module named 'of_the_rank'"
    ):
        batches(mapped, workers=serving.address)
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    with worker(imagenet, PYTHONPATH=paths) as other:
        local = plain.map_rows(of_the_rank.fn, executor="thread")
        assert_same(batches(local), batches(mapped, workers=f"{serving.address},{other.address}"))


def greedy(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    hidden = "FEEDSTOCK_TOKEN" not in os.environ
    size = 2 * GIB if os.environ.get("PLACE") == "worker" else 1
    return {"sum": int(np.ones(size, np.uint8)[0]), "hidden": hidden}


def test_processes_have_limits(imagenet, plain):
    mapped = plain.map_rows(greedy, executor="worker", num_workers=1)
    with worker(imagenet, "--code-memory-bytes", str(GIB), FEEDSTOCK_TOKEN=TOKEN) as process:
        workers = fs.Workers(process.address, token=TOKEN)
        with pytest.raises(fs.SampleError, match=r"map_rows\(greedy\) raised .*MemoryError"):
            batches(mapped, workers=workers)
        placing = plain.map_rows(
            lambda row, rng: {"hidden": "FEEDSTOCK_TOKEN" not in os.environ}, executor="worker"
        )
        assert all(batch["hidden"].all() for batch in batches(placing, workers=workers))


def test_functions_that_cannot_be_sent(plain, serving):
    large = os.urandom(9 << 20)
    options = {"output": "numpy", "workers": serving.address}
    with pytest.raises(fs.ConfigError, match="the pickled functions have .* bytes, and workers take at most"):
        plain.map_rows(lambda row, rng: {"x": large[0]}, executor="worker").loader(**options)
    with pytest.raises(fs.ConfigError, match="which has no bytes"):
        plain.map_rows(lambda row, rng: {"x": np.zeros(0)}, executor="worker").loader(**options)
    with pytest.raises(fs.ConfigError, match="leave out nulls= with a value"):
        plain.map_rows(jittered, executor="worker").nulls({"label": 0}).loader(**options)


def test_code_of_another_python_is_refused():
    from feedstock._rows import remote

    other = json.dumps({"interpreter": "cpython 3.8, numpy 1.20", "steps": [{"name": "old"}]})
    with pytest.raises(
        fs.ConfigError, match=r"map_rows\(old\) comes from cpython 3.8, numpy 1.20, and this worker .* has "
    ):
        remote.load(other, 0, 1, None)


@pytest.mark.parametrize("options", [["--insecure"], ["--insecure", "--token-file", "token"], []])
def test_code_beyond_this_machine_needs_a_token_and_tls(tmp_path, options):
    (tmp_path / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "feedstock", "worker", "--listen", "0.0.0.0:0", "--allow-code", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "can be reached from other machines" in done.stderr
    assert "can run code (--allow-code)" in done.stderr


def test_code_needs_a_token_on_this_machine_too():
    command = [sys.executable, "-m", "feedstock", "worker", "--listen", "127.0.0.1:0", "--allow-code"]
    environment = {name: value for name, value in os.environ.items() if name != "FEEDSTOCK_TOKEN"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "needs a token (--token-file)" in done.stderr


class Slow:
    """Takes long to load."""

    def __reduce__(self) -> Any:
        return time.sleep, (600,)


class Ending:
    """Ends the process that loads it."""

    def __reduce__(self) -> Any:
        return os._exit, (3,)


def described_to_workers(code: bytes) -> str:
    from feedstock._rows import remote

    step = {"name": "one", "inputs": None, "outputs": [], "processes": 1, "timeout": None}
    step["code"] = base64.b64encode(code).decode()
    return json.dumps({"interpreter": remote.interpreter(), "steps": [step]})


def test_a_function_that_does_not_load_is_named(monkeypatch):
    from feedstock._rows import processes, remote

    with pytest.raises(fs.ConfigError, match=r"map_rows\(one\): 4 new processes ended .* exit status 3"):
        remote.load(described_to_workers(pickle.dumps(Ending())), 0, 1, None)
    monkeypatch.setattr(processes, "_LOAD_SECONDS", 0.5)
    with pytest.raises(fs.ConfigError, match=r"map_rows\(one\): a new process has not loaded the function"):
        remote.load(described_to_workers(pickle.dumps(Slow())), 0, 1, None)


def test_a_machine_without_processes_is_left_to_others(monkeypatch):
    from feedstock._rows import process, remote

    def no_process(*_: Any, **__: Any) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(process.subprocess, "Popen", no_process)
    with pytest.raises(fs.RetryableError, match=r"the worker .* cannot run map_rows\(one\): BlockingIOError"):
        remote.load(described_to_workers(b""), 0, 1, None)


def test_a_worker_ends_with_a_row_that_is_stuck(imagenet, plain, tmp_path):
    stuck = tmp_path / "stuck"

    def hanging(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        stuck.touch()
        time.sleep(600)
        return {}

    outputs = {"value": fs.tensor("float32")}
    mapped = plain.map_rows(hanging, executor="worker", outputs=outputs, num_workers=1)
    with (
        worker(imagenet, "--drain-timeout", "1") as process,
        mapped.loader(output="numpy", workers=process.address) as loader,
    ):
        loader.start_prefetch()
        pause_until(stuck.exists)
        process.process.terminate()
        assert process.process.wait(20) == 0


def test_a_lane_that_is_given_up_runs_no_more_rows():
    from feedstock._rows import remote

    functions = remote.load(described_to_workers(pickle.dumps(dict)), 0, 1, None)
    lane = functions.lane()
    lane.give_up()
    with pytest.raises(fs.RetryableError, match="has given up these rows"):
        lane.run(0, [0], [], {})
    functions.stop()
