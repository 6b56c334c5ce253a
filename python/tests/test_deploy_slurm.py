"""Runs deploy/slurm/train.sbatch on a real Slurm: two nodes with a rank each, and two with a worker each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import slurm
from programs.slurm_train import FAST_STEPS

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "deploy" / "slurm" / "train.sbatch"
PROGRAM = Path(__file__).parent / "programs" / "slurm_train.py"
#: Instead of what the script requests: nodes that share this machine.
HERE = ["--cpus-per-task=1", "--gpus-per-node=0", ":", "--nodes=2", "--cpus-per-task=1", "--mem=2G"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Cluster]:
    slurm.install()
    running = slurm.Cluster(tmp_path_factory.mktemp("slurm"), {"gpu": 2, "cpu": 2})
    yield running
    running.stop()


def submit(cluster: slurm.Cluster, folder: Path, environment: dict[str, str], *command: object) -> str:
    """Submits the job to run in `folder`, and returns its number."""
    given = {"FEEDSTOCK_ALLOW": str(folder), "FEEDSTOCK_RUNS": str(folder / "runs"), **environment}
    options = ["--parsable", f"--chdir={folder}", "--output=output.txt", *HERE]
    return cluster.run("sbatch", *options, str(SBATCH), *map(str, command), environment=given).strip()


def output(cluster: slurm.Cluster, folder: Path) -> str:
    """Returns what the job and the daemons have printed, for a failing test's message."""
    printed = folder / "output.txt"
    return (printed.read_text() if printed.exists() else "no output") + "\n" + cluster.logs()


def start_again(cluster: slurm.Cluster, job: str) -> None:
    """Waits until the job is requeued, and starts it again: Slurm would wait for two minutes."""
    states = ["squeue", "-h", "-j", job, "-o", "%T"]
    slurm.wait_for(lambda: cluster.output(*states).split() == ["PENDING"] * 2, "the requeue")
    time.sleep(2)  # slurmd takes a start in the second of the requeue for the one that it was told to end
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.fixture(scope="module")
def training(
    cluster: slurm.Cluster, imagenet: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """Submits a training job, and returns its number and folder. Its start takes seconds: processes import torch."""
    folder = tmp_path_factory.mktemp("training")
    environment = {
        "FEEDSTOCK_ALLOW": str(imagenet),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RECORDS": str(folder),
    }
    options = ["--data", imagenet, "--checkpoint", folder / "run.pt", "--epochs", 2, "--size", 32]
    return submit(cluster, folder, environment, PROGRAM, *options, "--global-batch-size", 8), folder


TORCHRUN = """#!/bin/bash
# Stands for torchrun. The first start runs until SIGTERM, the second one fails.
trap 'exit 1' TERM
[ -n "$FEEDSTOCK_WORKERS" ] && [ -s "$FEEDSTOCK_RUN/token" ] || exit 3
echo "start ${SLURM_RESTART_COUNT:-0}" >>starts
[ -z "$SLURM_RESTART_COUNT" ] || exit 5
while sleep 0.1; do :; done
"""


@pytest.mark.usefixtures("training")  # which starts meanwhile
def test_a_job_near_its_time_limit_is_requeued_and_one_that_fails_is_not(
    cluster: slurm.Cluster, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    starts.touch()
    (tmp_path / "torchrun").write_text(TORCHRUN)
    (tmp_path / "torchrun").chmod(0o755)
    folders = [str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]]
    job = submit(cluster, tmp_path, {"PATH": os.pathsep.join(folders)}, "train.py")
    slurm.wait_for(lambda: starts.read_text().count("start 0\n") == 2, "two tasks")
    cluster.run("scancel", "--batch", "--signal=USR1", job)  # as Slurm does before the time limit
    start_again(cluster, job)
    slurm.wait_for(lambda: cluster.state(job) in ("COMPLETED", "FAILED"), "the job's end")
    assert cluster.state(job) == "FAILED", output(cluster, tmp_path)
    assert starts.read_text().count("start 1\n") > 0, output(cluster, tmp_path)
    assert not list((tmp_path / "runs").iterdir()), "a token is left"


def test_a_job_that_is_requeued_uses_every_sample_once(
    cluster: slurm.Cluster, training: tuple[str, Path]
) -> None:
    job, folder = training

    def is_in_mid_epoch() -> bool:
        assert cluster.state(job) in ("PENDING", "RUNNING"), output(cluster, folder)
        return len(records(folder)) >= 2 * FAST_STEPS

    slurm.wait_for(is_in_mid_epoch, "the first steps")
    cluster.run("scontrol", "requeue", job)
    start_again(cluster, job)
    slurm.wait_for(lambda: cluster.state(job) in ("COMPLETED", "FAILED"), "the job's end")
    printed = output(cluster, folder)
    assert cluster.state(job) == "COMPLETED", printed

    used = records(folder)
    for epoch, attempts in ((0, {0, 1}), (1, {1})):
        of_epoch = [record for record in used if record["epoch"] == epoch]
        counts = Counter(id for record in of_epoch for id in record["ids"])
        assert {record["attempt"] for record in of_epoch} == attempts, printed
        assert len(counts) == 200, f"epoch {epoch}: {len(counts)} of 200 samples\n{printed}"
        assert set(counts.values()) == {1}, f"epoch {epoch}: {counts.most_common(3)}\n{printed}"
    last = sum(len(record["ids"]) for record in used if record["attempt"] == 1)
    assert sum(json.loads((folder / "made.json").read_text())) >= last, "ranks decoded without the workers"
    assert not list((folder / "runs").iterdir()), "a token is left"


def test_a_job_needs_a_program_and_data_that_workers_may_read(cluster: slurm.Cluster, tmp_path: Path) -> None:
    environment = {**os.environ, "SLURM_JOB_ID": "1", "SLURM_SUBMIT_DIR": str(tmp_path)}
    environment.pop("FEEDSTOCK_ALLOW", None)
    for arguments, message in (([], "usage"), (["train.py"], "FEEDSTOCK_ALLOW: must name")):
        done = subprocess.run(
            ["bash", str(SBATCH), *arguments], env=environment, capture_output=True, text=True
        )
        assert done.returncode != 0
        assert message in done.stderr
        assert not list(tmp_path.iterdir())
