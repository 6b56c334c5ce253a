"""A notice that the node of a rank leaves leads to one checkpoint, in training loops and in trainers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import ray.train
from preemption import in_a_train_worker
from ray.train import PreemptionInfo

import feedstock as fs
from feedstock.ray import PreemptionNotice

LEAVES = PreemptionInfo(None, {"a": [0, 1]})
BOTH_LEAVE = PreemptionInfo(1_000, {"a": [0, 1], "b": [2]})


class Answers:
    """Ray Train's function, which answers ``info`` from a certain question on, and counts the questions."""

    def __init__(self, info: PreemptionInfo, first: int) -> None:
        self.info, self.first, self.asked = info, first, 0

    def __call__(self) -> PreemptionInfo | None:
        self.asked += 1
        return self.info if self.asked >= self.first else None


def test_due_once_for_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, LEAVES, LEAVES, BOTH_LEAVE, BOTH_LEAVE, None])
    notice = in_a_train_worker(monkeypatch, lambda: next(answers), every=3)
    assert [call for call in range(1, 19) if notice.due()] == [6, 12]
    assert next(answers, "no more") == "no more"


def test_nothing_is_due_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Answers(LEAVES, first=1)
    monkeypatch.setattr(ray.train, "get_preemption_info", asked)
    notice = PreemptionNotice(every=1)
    assert not any(notice.due() for _ in range(20))
    assert asked.asked == 0, "Ray raises an error outside of its workers"
    with pytest.raises(fs.ConfigError, match="every must be an integer >= 1; got 0"):
        PreemptionNotice(every=0)


def test_an_older_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train import utils

    monkeypatch.setattr(utils, "_in_ray_train_worker", lambda: True)
    monkeypatch.delattr(ray.train, "get_preemption_info")
    notice = PreemptionNotice(every=1)
    assert not any(notice.due() for _ in range(20))


@pytest.mark.parametrize("strategy", ["steps", "epoch", "no"])
def test_trainer_saves_once(
    imagenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Runs 40 steps with a notice at the second question, which is after step 20."""
    pytest.importorskip("transformers")
    from programs.hf_trainer import Job, Model, arguments, pipeline

    from feedstock.huggingface import FeedstockTrainer

    job = Job(str(imagenet), str(tmp_path), "job", {"batch_size": 10}, per_device=10, epochs=2, save_steps=33)
    options = arguments(job)
    options.save_strategy = type(options.save_strategy)(strategy)
    in_a_train_worker(monkeypatch, Answers(LEAVES, first=3))
    FeedstockTrainer(Model(), options, train_dataset=pipeline(job)).train()
    saved = {int(path.name.rpartition("-")[2]) for path in tmp_path.rglob("checkpoint-*")}
    ends = {40} if strategy != "no" else set()
    assert saved == {"steps": {30, 33}, "epoch": {20, 30}, "no": set()}[strategy] | ends
    if strategy == "steps":
        state = json.loads(next(tmp_path.rglob("checkpoint-30/trainer_state.json")).read_text())
        loader_state = state["stateful_callbacks"]["LoaderState"]["args"]["loader_state"]
        assert (loader_state["epoch"], loader_state["position"]) == (1, 100)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, Any]]]:
    """Returns the step and the checkpoint of every report to Ray."""
    import torch

    found: list[tuple[int, dict[str, Any]]] = []

    def report(metrics: dict[str, Any], checkpoint: ray.train.Checkpoint) -> None:
        path = Path(checkpoint.path, "checkpoint.ckpt")
        found.append((metrics["step"], torch.load(path, weights_only=False)))

    monkeypatch.setattr(ray.train, "report", report)
    return found


@pytest.mark.parametrize(
    ("every_steps", "accumulate", "steps"),
    [(None, 1, [6]), (4, 1, [4, 6, 8]), (2, 2, [2, 3, 4]), (None, 4, [2])],
)
def test_lightning_reports_once(
    imagenet: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reports: list[tuple[int, dict[str, Any]]],
    every_steps: int | None,
    accumulate: int,
    steps: list[int],
) -> None:
    """Runs 10 batches with a notice after the sixth. In the middle of an accumulation, its end is waited for."""
    pytest.importorskip("lightning")
    from lightning.pytorch import Trainer
    from programs.lightning_train import Job, Module

    from feedstock.lightning import FeedstockDataModule, RayReport

    images = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.random_resized_crop(32))
    data = FeedstockDataModule(images.shuffle(seed=3, window=64).batch(20).options(threads=1))
    in_a_train_worker(monkeypatch, Answers(LEAVES, first=2))
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[RayReport(every_steps, notice_steps=3)],
        accumulate_grad_batches=accumulate,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(Module(Job(str(imagenet), str(tmp_path))), data)
    assert [step for step, _ in reports] == steps
    for step, saved in reports:
        assert saved["global_step"] == step
        (position,) = [state for name, state in saved.items() if name == "FeedstockDataModule"]
        assert position["train"]["position"] == 20 * accumulate * step % 200
