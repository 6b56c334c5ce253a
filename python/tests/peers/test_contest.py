"""A contender from its start to its figures, in a separate process."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import contest

CONTENDERS = Path(contest.__file__).parents[1] / "contenders"

# Makes batches at a known rate, leaves shared memory when it ends, and can save its position.
FAKE = """
import mmap, os, time
import numpy as np
from contenders.protocol import Batch, Contender, Loader, main

BATCH_S = 0.02

def open_loader(job, state):
    with open(f"/dev/shm/feedstock-test-{os.getpid()}", "w+b") as file:
        file.truncate(8 << 20)
        held = mmap.mmap(file.fileno(), 8 << 20)
    held[:] = bytes(8 << 20)
    at = [state or 0]

    def batches():
        while True:
            time.sleep(BATCH_S)
            at[0] += 1
            if job.native == "breaks" and at[0] == 3:
                raise ValueError("no such picture")
            dtype = np.float32 if job.native == "floats" else np.uint8
            yield Batch(np.zeros((job.batch_size, 224, 224, 3), dtype), [at[0]] * job.batch_size)

    return Loader(batches(), lambda: at[0] + (job.native == "forgets"), lambda: at[0] * 1000 + 0 * len(held))

CONTENDER = Contender(title="Fake", open=open_loader, layout="folder", tensors="numpy", resume=True)

if __name__ == "__main__":
    main(CONTENDER)
"""


@pytest.fixture
def fake(tmp_path: Path) -> dict[str, str]:
    """Returns the environment in which ``contenders.fake`` is found next to the real ones."""
    package = tmp_path / "contenders"
    package.mkdir()
    (package / "__init__.py").write_text(f"__path__.append({str(CONTENDERS)!r})\n")
    (package / "fake.py").write_text(FAKE)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def job(mode: str, **more: Any) -> dict[str, Any]:
    made = {"job": "pictures-train", "storage": "local", "mode": mode, "uris": {}, "native": ""}
    return {**made, "batch_size": 4, "cores": 1, "workers": 1, "samples": 400, **more}


def ran(fake: dict[str, str], made: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    outcome = contest.run("fake", Path(sys.executable), made, fake, tmp_path / "log")
    return contest.figures(made, outcome, "numpy")


def left_behind() -> list[Path]:
    return list(Path("/dev/shm").glob("feedstock-test-*"))


def test_rates_are_those_of_the_batches(fake: dict[str, str], tmp_path: Path) -> None:
    made = job("steady", warm_up=40, measured=200, sample_bytes=250.0)
    found = ran(fake, made, tmp_path)
    assert (found["samples"], found["batches"]) == (200, 50)
    assert 50 < found["rate"] <= 4 / 0.02  # sleeping takes longer on a busy machine, never less
    assert found["fetched_share"] == pytest.approx(1.0)  # 1,000 bytes per batch of 4
    assert found["shape"] == [4, 224, 224, 3]
    assert found["peak_bytes"] > 8 << 20
    assert found["processes"] == 1
    assert left_behind() == []


def test_a_consumer_with_steps_waits_for_the_rest_of_the_time(fake: dict[str, str], tmp_path: Path) -> None:
    made = job("steps", warm_up=8, measured=80, step_s=0.06, sample_bytes=250.0)
    found = ran(fake, made, tmp_path)
    assert (found["samples"], found["batches"]) == (80, 20)
    slept = 20 * 0.06 / found["seconds"]  # the fake makes a batch only when it is requested
    assert found["wait_share"] == pytest.approx(1 - slept, abs=0.1)
    assert found["longest_wait_s"] >= 0.02
    assert found["rate"] <= 4 / 0.08
    assert found["fetched_share"] == pytest.approx(1.0)


def test_shared_memory_that_another_process_holds_stays(tmp_path: Path) -> None:
    mapped, left = (Path(f"/dev/shm/feedstock-test-{os.getpid()}-{name}") for name in ("mapped", "left"))
    try:
        with mapped.open("w+b") as file:
            file.truncate(4096)
            held = mmap.mmap(file.fileno(), 4096)
        left.write_bytes(b"x")
        assert contest._unused({mapped, left}) == {left}
        held.close()
        assert contest._unused({mapped, left}) == {mapped, left}
    finally:
        mapped.unlink(missing_ok=True)
        left.unlink(missing_ok=True)


def test_shares_are_told_where_sizes_are(fake: dict[str, str], tmp_path: Path) -> None:
    assert "fetched_share" not in ran(fake, job("steady", warm_up=4, measured=8), tmp_path)


def test_a_consumer_that_pauses_leaves_memory_to_be_read(fake: dict[str, str], tmp_path: Path) -> None:
    found = ran(fake, job("stall", steps=5, pause=1.5), tmp_path)
    for name in ("rest", "running", "stalled", "stalled_peak"):
        assert found[f"{name}_bytes"] > 8 << 20, name
    assert found["stalled_cores"] < 0.2


@pytest.mark.parametrize(("native", "right"), [("", True), ("forgets", False)])
def test_resuming_is_compared_with_what_came_next(
    fake: dict[str, str], tmp_path: Path, native: str, right: bool
) -> None:
    more = {"steps": 5, "output": str(tmp_path / "state"), "native": native}
    ran(fake, job("save", **more), tmp_path)
    found = ran(fake, job("resume", **more), tmp_path)
    assert found["right"] is right
    assert found["resume_s"] > 0.02


@pytest.mark.parametrize(
    ("native", "told"),
    [("breaks", "ValueError: no such picture"), ("floats", r"float32 \[224, 224, 3\] instead of uint8")],
)
def test_what_is_wrong_is_told(fake: dict[str, str], tmp_path: Path, native: str, told: str) -> None:
    with pytest.raises(contest.Failed, match=told):
        ran(fake, job("steady", warm_up=40, measured=200, native=native), tmp_path)
    assert left_behind() == []
