"""The ImageNet examples, started with the commands in their first lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchvision")

from programs.torch_ranks import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


def torchrun(example: str, *arguments: object) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(EXAMPLES / example), *map(str, arguments)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_ddp(imagenet: Path, tmp_path: Path) -> None:
    import torch

    checkpoint = tmp_path / "checkpoint.pt"
    small = ["--epochs", 1, "--batch-size", 25]
    lines = torchrun("imagenet_ddp.py", "--train", imagenet, "--checkpoint", checkpoint, *small)
    assert lines[-1].startswith("epoch 0: ")
    assert lines[-1].endswith(" of 200 right"), "evaluation did not count each sample once"
    loader = torch.load(checkpoint, weights_only=True)["loader"]
    assert (loader["epoch"], loader["position"]) == (1, 0)


def test_fsdp2(imagenet: Path, tmp_path: Path) -> None:
    small = ["--epochs", 1, "--batch-size", 25, "--save-every", 3]
    lines = torchrun("imagenet_fsdp2.py", "--train", imagenet, "--checkpoints", tmp_path / "run", *small)
    assert lines[-1].startswith("epoch 0: ")
    assert lines[-1].endswith(" of 200 right"), "evaluation did not count each sample once"
    places = sorted(path.parent.name for path in tmp_path.glob("run/*/.metadata"))
    assert places == ["000-000000000150", "001-000000000000"]


def test_timm(imagenet: Path) -> None:
    lines = torchrun("imagenet_timm.py", "--train", imagenet, "--epochs", 3, "--batch-size", 25)
    ends = [line.split() for line in lines if line.startswith("epoch ")]
    assert [words[6] for words in ends] == ["200"] * 3, "evaluation did not count each sample once"
    losses = [float(words[3].rstrip(",")) for words in ends]
    assert losses[2] < losses[0], lines
    assert len({words[-1] for words in ends}) == 3, "the average does not follow the weights"


def test_segmentation() -> None:
    lines = torchrun("segmentation.py", "--epochs", 3)
    ends = [line for line in lines if line.startswith("epoch ")]
    scores = [float(line.split()[4]) for line in ends]
    assert len(scores) == 3, lines
    assert scores[-1] > 0.5, lines
    # 96 scenes of 64 × 64 pixels, less the frame without a class: each sample counted once over both ranks.
    assert len({line.split()[6] for line in ends}) == 1
    assert int(ends[0].split()[6]) <= 96 * 64 * 64


def test_detection() -> None:
    lines = torchrun("detection.py", "--epochs", 6)
    ends = [line.split() for line in lines if line.startswith("epoch ")]
    assert len(ends) == 6, lines
    assert float(ends[-1][2]) > 0.3, lines
    assert len({words[4] for words in ends}) == 1, "evaluation did not count each sample once"


def test_own_augmentation() -> None:
    lines = torchrun("own_augmentation.py", "--num-workers", 1)
    ends = [line.split() for line in lines if line.startswith("epoch ")]
    assert [(words[1], words[-2]) for words in ends] == [("0:", "320"), ("1:", "320")], lines
    assert float(ends[1][4]) < float(ends[0][4]), lines


@pytest.mark.parametrize("transforms", ["torchvision", "albumentations"])
def test_own_dataset(transforms: str) -> None:
    pytest.importorskip("pyarrow")
    options = []
    if transforms == "albumentations":
        pytest.importorskip("albumentations")
        options = ["--albumentations"]
    lines = torchrun("own_dataset.py", "--num-workers", 1, *options)
    ends = [line.split() for line in lines if line.startswith("epoch ")]
    assert [(words[1], words[-2]) for words in ends] == [("0:", "320"), ("1:", "320")], lines
    assert float(ends[1][4]) < float(ends[0][4]), lines


def test_dino() -> None:
    lines = torchrun("dino.py", "--epochs", 2)
    ends = [line.replace(",", "").split() for line in lines if line.startswith("epoch ")]
    assert [words[1] for words in ends] == ["0:", "1:"], lines
    assert float(ends[1][3]) < float(ends[0][3]), lines
    assert float(ends[1][-1]) > 0.001, f"collapsed: {lines}"


def test_simclr() -> None:
    lines = torchrun("simclr.py", "--epochs", 3)
    ends = [line.replace(",", "").split() for line in lines if line.startswith("epoch ")]
    assert [words[1] for words in ends] == ["0:", "1:", "2:"], lines
    assert float(ends[2][3]) < float(ends[0][3]), lines
    # 2 ranks of 16 images: one of 63 other views is the partner.
    assert float(ends[2][4]) > 2 / 63, lines
