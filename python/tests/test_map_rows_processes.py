"""Processes of functions of rows: their memory, threads and end, and the trainers' loaders that use them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import feedstock as fs

OUTPUTS = {"pid": fs.tensor("int64"), "big": fs.tensor("float32", (64, 1024))}


@pytest.fixture(scope="module")
def labels(imagenet):
    return fs.Dataset(imagenet).columns(["label"]).batch(20)


def with_pid(row, rng):
    return {"pid": os.getpid(), "big": np.full((64, 1024), row["label"], np.float32)}


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_processes_end_with_their_loader(labels):
    loader = labels.map_rows(with_pid, outputs=OUTPUTS, num_workers=2).loader(output="numpy")
    first = set(next(iter(loader))["pid"].tolist())
    assert first
    assert os.getpid() not in first
    loader.close()
    assert not any(map(is_alive, first))
    second = set(next(iter(loader))["pid"].tolist())  # it starts others
    assert not first & second
    del loader
    gc.collect()
    wait_until(lambda: not any(map(is_alive, second)))


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), 9)", "sys.exit()", "os._exit(0)", "1 / 0"])
def test_processes_end_with_their_parent(imagenet, ending):
    """Also those that are in the middle of a row when the parent ends without a chance to do something."""
    program = f"""
import os, sys, time
import numpy as np
import feedstock as fs

def fn(row, rng):
    if row["label"] != first:
        time.sleep(600)
    return {{"pid": os.getpid()}}

pipeline = fs.Dataset({str(imagenet)!r}).columns(["label"]).batch(1)
first = int(next(iter(pipeline.loader()))["label"].numpy()[0])
loader = pipeline.map_rows(fn, outputs={{"pid": fs.tensor("int64")}}, num_workers=2).loader(output="numpy")
print(int(next(iter(loader))["pid"][0]), flush=True)
stages = loader._rows.stages
print(*(process.pid for process in stages[0]._executor._shared.processes.values()), flush=True)
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], text=True, capture_output=True, timeout=120, check=False
    )
    children = {int(word) for word in done.stdout.split()}
    assert len(children) >= 1, done.stderr
    wait_until(lambda: not any(map(is_alive, children)))


def test_ctrl_c_reaches_the_parent_only(labels):
    def patient(row, rng):
        time.sleep(0.02)
        return {"pid": os.getpid()}

    with labels.map_rows(patient, outputs={"pid": fs.tensor("int64")}, num_workers=2).loader(
        output="numpy"
    ) as loader:
        batches = iter(loader)
        children = set(next(batches)["pid"].tolist())
        for child in children:
            os.kill(child, signal.SIGINT)
        again = set(np.concatenate([batch["pid"] for batch in batches]).tolist())
    assert children <= again


def resident(process: int | str) -> int:
    """Returns the bytes of a process that only it has, and shared memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))) << 10


def test_memory_does_not_grow(labels):
    """Batches have 5 MiB of results. Over 50 more of them, neither side grows by two."""
    mapped = labels.map_rows(with_pid, outputs=OUTPUTS, num_workers=2)

    def used(children):
        gc.collect()
        maps = sum("feedstock-rows" in line for line in Path("/proc/self/maps").read_text().splitlines())
        return resident("self"), max(map(resident, children)), maps, len(os.listdir("/proc/self/fd"))

    with mapped.loader(output="numpy") as loader:
        children = set()
        for _ in range(2):
            for batch in loader:
                children.update(batch["pid"].tolist())
                assert batch["big"][:, 0, 0].tolist() == batch["label"].tolist()
        before = used(children)
        for _ in range(5):
            for batch in loader:
                assert batch["big"][7, 3, 3] == batch["label"][7]
        after = used(children)
    batch_bytes = 20 * 64 * 1024 * 4
    assert after[0] - before[0] < 2 * batch_bytes
    assert after[1] - before[1] < 2 * batch_bytes
    assert after[2] <= before[2] + 2, "maps"
    assert after[3] <= before[3] + 2, "descriptors"


def test_batches_of_different_sizes_use_areas_again(labels):
    """Areas are unmapped on both sides once they are too small or too large."""

    def sized(row, rng):
        return {"pid": os.getpid()}

    sizes = [1, 150, 3, 120, 7, 90]
    mapped = labels.map_rows(
        sized,
        outputs={
            "pid": fs.tensor("int64"),
        },
        num_workers=1,
    )
    wide = labels.map_rows(lambda row, rng: {"wide": np.zeros(300_000, np.uint8)}, num_workers=1)
    for pipeline in (mapped, wide):
        with pipeline.loader(output="numpy") as loader:
            for size in sizes:
                loader.reconfigure(global_batch_size=size)
                loader.seek(0)
                assert len(next(iter(loader))["sample_ids"]) == size
            shared = loader._rows.stages[0]._executor._shared
            (process,) = shared.processes.values()
            assert len(process._mapped) <= 12
            assert len(shared.areas._alive) <= 12


def test_libraries_use_one_thread(labels):
    torch = pytest.importorskip("torch")
    del torch

    def threads(row, rng):
        import torch

        return {
            "omp": int(os.environ["OMP_NUM_THREADS"]),
            "torch": torch.get_num_threads(),
            "pid": os.getpid(),
        }

    with labels.map_rows(threads, num_workers=1).loader(output="numpy") as loader:
        batches = [batch for batch, _ in zip(loader, range(2), strict=False)]
    assert all((batch["omp"] == 1).all() for batch in batches)
    assert (batches[1]["torch"] == 1).all()


def test_a_forked_child_ends_no_process(labels):
    with labels.map_rows(with_pid, outputs=OUTPUTS, num_workers=2).loader(output="numpy") as loader:
        batches = iter(loader)
        children = set(next(batches)["pid"].tolist())
        child = os.fork()
        if child == 0:
            code = 1
            try:
                loader.close()
            except fs.ForkError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sum(len(batch["pid"]) for batch in batches) == 180
        assert all(map(is_alive, children))
