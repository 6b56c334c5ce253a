"""Hugging Face's Trainer: after a kill in the middle of an epoch, it resumes with the next sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from programs import torch_ranks

SAMPLES = 200
MODULES = ("torch", "torch._dynamo", "transformers.trainer", "accelerate")  # imported once for all ranks


def launch(world_size: int, job: Any, program: str = "train") -> list[int]:
    from programs import hf_trainer

    return torch_ranks.launch(
        getattr(hf_trainer, program), world_size, Path(job.folder), job, modules=MODULES
    )


def job(data: Path, folder: Path, name: str, **options: Any) -> Any:
    from programs import hf_trainer

    return hf_trainer.Job(str(data), str(folder), name, **options)


def done(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    assert path.exists(), torch_ranks.printed(folder)
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_killed_in_mid_epoch_equals_an_unbroken_run_to_the_last_bit(imagenet: Path, tmp_path: Path) -> None:
    # 10 batches per epoch in groups of 3 give 4 updates, of 3, 3, 3 and 1 batches. The checkpoint of update 6 is in the
    # middle of the second epoch. Trainer would otherwise miss that epoch's last, shorter accumulation.
    shape: dict[str, Any] = {"batch": {"batch_size": 20}, "per_device": 20, "accumulate": 3}
    assert launch(1, job(imagenet, tmp_path / "whole", "whole", **shape)) == [0], torch_ranks.printed(
        tmp_path / "whole"
    )
    broken = tmp_path / "broken"
    assert launch(1, job(imagenet, broken, "killed", kill_at=7, **shape)) == [-9], torch_ranks.printed(broken)
    assert not (broken / "killed.json").exists()
    assert sorted(path.name for path in (broken / "out").glob("checkpoint-*")) == [
        "checkpoint-3",
        "checkpoint-6",
    ]
    assert launch(1, job(imagenet, broken, "resumed", resume=True, **shape)) == [0], torch_ranks.printed(
        broken
    )
    whole, resumed = done(tmp_path / "whole", "whole"), done(broken, "resumed")
    assert resumed["seen"] == [2] * SAMPLES
    assert resumed["updates"] == 8
    assert resumed == whole


def test_another_world_size_after_the_kill(imagenet: Path, tmp_path: Path) -> None:
    kept: dict[str, Any] = {"batch": {"global_batch_size": 20}}
    codes = launch(2, job(imagenet, tmp_path, "killed", per_device=10, kill_at=14, **kept))
    assert codes[0] == -9, torch_ranks.printed(tmp_path)
    assert launch(
        1, job(imagenet, tmp_path, "resumed", per_device=20, resume=True, restore_callbacks=True, **kept)
    ) == [0]
    resumed = done(tmp_path, "resumed")
    assert resumed["seen"] == [2] * SAMPLES
    assert (resumed["updates"], resumed["ranks"]) == (20, 1)
    assert resumed["epochs"]["13"] == pytest.approx(1.3)


def test_evaluation_has_each_sample_once_on_two_ranks(imagenet: Path, tmp_path: Path) -> None:
    # 200 samples in steps of 2 × 12: the last step has 8 samples and 16 rows of padding.
    evaluated = job(imagenet, tmp_path, "ids", batch={}, per_device=12)
    assert launch(2, evaluated, "evaluate") == [0, 0], torch_ranks.printed(tmp_path)
    for attempt in range(2):
        assert done(tmp_path, f"ids-{attempt}") == list(range(SAMPLES))
