"""The example with speech and checkpoints in S3: after a worker is killed, losses equal those of an unbroken run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import feedstock as fs

pytest.importorskip("torch")
pytest.importorskip("ray")

ROOT = Path(__file__).parents[2]
PROGRAM = "feedstock-test-s3"
PATIENCE_S = 900  # enough for an overloaded machine


def s3_server() -> Path:
    """Returns the S3 server of the Rust tests, and builds it if it is not up to date."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    if not target.exists():  # the choice of scripts/common.sh
        target = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "feedstock", "target")
    # With the features of all tests. Otherwise the crates that it shares with them would be built again.
    features = ["--workspace", "--exclude", "feedstock-python", "--all-features"]
    build = ["cargo", "build", "--quiet", "--locked", *features, "--bin", PROGRAM]
    subprocess.run([*build, "--target-dir", str(target)], cwd=ROOT, check=True, timeout=PATIENCE_S)
    return target / "debug" / PROGRAM


def test_a_killed_run_has_the_losses_of_an_unbroken_one(tmp_path: Path) -> None:
    losses = tmp_path / "losses.json"
    example = ROOT / "examples" / "python" / "common_voice_ctc.py"
    command = [sys.executable, str(example), "--s3-server", str(s3_server()), "--json", str(losses)]
    ray_folder = tempfile.mkdtemp(prefix="fs-ray-")  # short: the paths of unix sockets end at 107 bytes
    environment = os.environ | {
        "PYTHONPATH": str(Path(fs.__file__).parents[1]),  # the package under test, in Ray's workers too
        "OMP_NUM_THREADS": "1",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TMPDIR": str(tmp_path),
        "RAY_TMPDIR": ray_folder,
    }
    try:
        done = subprocess.run(
            [*command, "--threads", "1"], env=environment, timeout=PATIENCE_S, capture_output=True, text=True
        )
    finally:
        shutil.rmtree(ray_folder, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "s3://corpus/cv: 74 audio clips; checkpoints in s3://runs/ctc" in done.stdout
    runs = json.loads(losses.read_text())
    assert runs["ctc"] == runs["ctc-killed"]
    assert len(runs["ctc"]) == 10
    assert runs["ctc"][-1] < 0.75 * runs["ctc"][0]  # it does learn
    assert "The actor died unexpectedly" in done.stderr + done.stdout, "no worker was killed"
