"""Runs the page on plateaus in every rank, with an evaluation that never improves, and resumes it in mid-epoch."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from . import pages
from .torch_train import Model

SAMPLES, EPOCHS = 200, 3


class Stopped(Exception):
    """Ends a run between two steps."""


def run(page: str, pictures: str) -> None:
    """Trains, stops after the second change of the batch size, and goes on in new objects from the saved state."""
    first = load(page, pictures)
    first["steps_left"] = 6
    try:
        first["train"](EPOCHS)
    except Stopped:
        assert len(first["sizes"]) == 6
    else:
        raise AssertionError("the first run should have been stopped")
    saved = first["saved"]
    assert saved["sizes"] == [16] * 3 + [32] * 3, saved["sizes"]
    second = load(page, pictures)
    second["steps_left"] = 10_000
    second["resume"]()
    assert second["batches"].position == saved["position"] == 144, "not in mid-epoch"
    second["train"](EPOCHS)
    assert set(second["sizes"]) == {64}, second["sizes"]
    assert second["optimizer"].param_groups[0]["lr"] < 0.1, "the learning rate never fell"

    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, saved["steps"] + second["steps"])
    order = [sample for step in zip(*everywhere, strict=True) for ids in step for sample in ids]
    assert len(order) == EPOCHS * SAMPLES
    for epoch in range(EPOCHS):
        assert sorted(order[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(SAMPLES)), epoch


def load(page: str, pictures: str) -> dict[str, Any]:
    """Returns the page's names, with a step that records, and an evaluation that gets worse each time."""
    replacements = {
        "s3://corpus/imagenet/train": pictures,
        "dist.init_process_group() ": "assert dist.is_initialized() ",
        '"cuda"': '"cpu"',
        "(224)": "(16)",
        "size=256": "size=16",
        "rows=256, most=4096, patience=2": "rows=16, most=64, patience=0",
        "patience=2": "patience=0",
        "islice(batches, 500)": "islice(batches, 3)",
        'batch["label"]': '(batch["label"] % 10)',  # the model's classes
    }
    namespace: dict[str, Any] = {"Model": Model, "steps": [], "sizes": [], "evaluations": 0}
    pages.run(page, replacements, namespace)
    page_step, page_save, batches = namespace["train_step"], namespace["save"], namespace["batches"]

    def train_step(batch: dict[str, Any]) -> None:
        if namespace["steps_left"] == 0:
            raise Stopped
        namespace["steps_left"] -= 1
        namespace["steps"].append(batch["sample_ids"][batch["valid"]].tolist())
        namespace["sizes"].append(batches.global_batch_size)
        page_step(batch)

    def evaluate(model: Any) -> float:
        namespace["evaluations"] += 1
        return float(namespace["evaluations"])

    def save() -> None:
        page_save()
        dist.barrier()
        kept = {name: list(namespace[name]) for name in ("steps", "sizes")}
        namespace["saved"] = {**kept, "position": batches.position}

    namespace |= {"train_step": train_step, "evaluate": evaluate, "save": save}
    return namespace
