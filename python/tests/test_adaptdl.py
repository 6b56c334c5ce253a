"""Elastic runs of AdaptDL on one machine: stopped, checkpointed and restarted with other replicas, counting samples."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
if importlib.util.find_spec("adaptdl") is None:  # importing it takes over this process's signals
    pytest.skip("needs adaptdl", allow_module_level=True)

from programs import torch_records
from programs.adaptive_adaptdl import TERMINATED, Job, Nursery, printed

SAMPLES = 200
Run = Callable[[Job, int, int, int], None]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one.close()


@pytest.fixture
def run(nursery: Nursery) -> Run:
    """Returns a function that runs a job in `replicas` replicas after `restarts` starts, and asserts the exit codes."""

    def run(job: Job, replicas: int, restarts: int, expected: int) -> None:
        codes = nursery.launch(job, replicas, restarts)
        assert codes == [expected] * replicas, printed(Path(job.folder))

    return run


def results(job: Job, replicas: int) -> list[dict[str, Any]]:
    return [json.loads(Path(job.folder, f"done-{rank}").read_text()) for rank in range(replicas)]


def counted(job: Job, what: str = "records") -> Counter[int]:
    count: Counter[int] = Counter()
    for record in torch_records.read(Path(job.folder) / what):
        count.update(id for id, valid in zip(record.ids, record.valid, strict=True) if valid)
    return count


def assert_each(count: Counter[int], times: int) -> None:
    assert len(count) == SAMPLES
    assert set(count.values()) == {times}, count.most_common(3)


def test_replicas_come_and_go_and_every_sample_enters_one_step_an_epoch(
    run: Run, imagenet: Path, tmp_path: Path
) -> None:
    job = Job(str(imagenet), str(tmp_path))
    run(replace(job, stop_after=7), 1, 0, TERMINATED)
    run(replace(job, stop_after=5), 3, 1, TERMINATED)
    run(job, 2, 2, 0)
    assert_each(counted(job), job.epochs)
    attempts = {record.attempt for record in torch_records.read(tmp_path / "records")}
    assert attempts == {0, 1, 2}
    for result in results(job, 2):
        assert result["rows"] == SAMPLES * job.epochs


def test_after_a_kill_the_samples_since_the_checkpoint_come_again_with_the_model(
    run: Run, nursery: Nursery, imagenet: Path, tmp_path: Path
) -> None:
    job = Job(str(imagenet), str(tmp_path))
    run(replace(job, stop_after=7), 1, 0, TERMINATED)
    codes = nursery.launch(replace(job, kill_after=3), 2, 1)
    assert codes[1] == -9, printed(tmp_path)
    assert codes[0] not in (0, TERMINATED)
    run(job, 2, 2, 0)
    undone = [record for record in torch_records.read(tmp_path / "records") if record.attempt == 1]
    assert undone
    count = counted(job)
    count.subtract(id for record in undone for id in record.ids)
    assert_each(count, job.epochs)
    assert results(job, 2)[0]["rows"] == SAMPLES * job.epochs


def test_a_restart_in_the_evaluation_does_not_train_again(run: Run, imagenet: Path, tmp_path: Path) -> None:
    job = Job(str(imagenet), str(tmp_path), evaluate=True)
    run(replace(job, stop_in_evaluation=True), 2, 0, TERMINATED)
    run(job, 1, 1, 0)
    assert_each(counted(job), job.epochs)
    assert_each(counted(job, "evaluated"), job.epochs)
    assert results(job, 1)[0]["evaluated"] == {"0": SAMPLES, "1": SAMPLES}


def test_adaptdl_scales_the_batch_within_an_epoch_and_restarts_in_the_midst_of_a_step(
    run: Run, imagenet: Path, tmp_path: Path
) -> None:
    job = Job(str(imagenet), str(tmp_path), batch_size=8, max_batch_size=64, epochs=3)
    run(replace(job, stop_after=27), 2, 0, TERMINATED)
    first = torch_records.read(tmp_path / "records")
    assert {len(record.ids) for record in first} == {4, 8}
    run(job, 3, 1, 0)
    done = results(job, 3)[0]
    assert max(steps for _, steps in done["sizes"]) == 2  # 64 rows of three replicas, at most 8 at a time
    # Batches that the first run took and did not apply to the model came again: some of a step's four batches.
    count = counted(job)
    again = sum(count.values()) - SAMPLES * job.epochs
    assert len(count) == SAMPLES
    assert min(count.values()) == job.epochs
    assert again in (16, 32, 48)
    # AdaptDL's accumulator was saved with those samples in it.
    assert done["rows"] == sum(count.values())


def test_by_progress_passes_over_the_data_stay_whole(run: Run, imagenet: Path, tmp_path: Path) -> None:
    job = Job(str(imagenet), str(tmp_path), batch_size=8, max_batch_size=64, by="progress")
    run(job, 2, 0, 0)
    done = results(job, 2)
    assert done[0]["passes"] == done[1]["passes"] >= 1
    count = counted(job)
    assert len(count) == SAMPLES
    assert max(count.values()) - min(count.values()) <= 1
    assert max(count.values()) in (done[0]["passes"], done[0]["passes"] + 1)


def test_what_cannot_work_is_told_at_once(imagenet: Path) -> None:
    """Runs in a separate process, since importing AdaptDL takes over the signals."""
    program = f"""
import os
import feedstock as fs
from feedstock.adaptdl import AdaptDLLoader
pipeline = fs.Dataset({str(imagenet)!r}).map("image", fs.decode_image(), fs.random_resized_crop(8)).batch(1)

def told(**options):
    try:
        AdaptDLLoader(pipeline, **options)
    except fs.ConfigError as error:
        print(error)

told(batch_size=0)
told(batch_size=8, epochs="steps")
told(batch_size=8, sync_steps=0)
os.environ["ADAPTDL_CHECKPOINT_PATH"] = "."
told(batch_size=8)
del os.environ["ADAPTDL_CHECKPOINT_PATH"]
loader = AdaptDLLoader(pipeline, 8)
try:
    loader.autoscale_batch_size(16)
except fs.ConfigError as error:
    print(error)
"""
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("ADAPTDL_", "TORCH_FORCE"))
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean, capture_output=True, text=True, timeout=200
    )
    messages = done.stdout.splitlines()
    assert messages[:4] == [
        "batch_size must be >= 1 (rows over all 1 replicas); got 0",
        "epochs must be 'data' or 'progress'; got 'steps'",
        "sync_steps must be >= 1 (optimizer steps); got 0",
        messages[3],
    ], done.stdout + done.stderr
    assert "set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1" in messages[3]
    assert hasattr(np, "int") or "set gradient_accumulation=True" in messages[4]
