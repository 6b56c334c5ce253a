"""The programs that measure adapters on GPUs run: here, over the stand-in for a GPU, with two ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = Path(__file__).parents[2] / "benches" / "gpu" / "adapters.py"

#: Adapters and what they need. Trainer and those on Ray take a minute or more; `test_trainers_device.py` tests
#: their loaders.
ADAPTERS = {"torch": "torch", "lightning": "lightning", "accelerate": "accelerate"}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_every_rank_makes_its_steps(imagenet: Path, adapter: str) -> None:
    pytest.importorskip(ADAPTERS[adapter])
    small = ["--batch", "10", "--size", "16", "--steps", "12", "--data", str(imagenet)]
    command = [sys.executable, str(PROGRAM), "--stand-in", "--gpus", "2", *small, "--adapters", adapter]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("GPUs")[1].strip() == "12 steps on each rank"
