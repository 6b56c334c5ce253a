"""Runs the page on torchmetrics in every rank, and the same computation in one process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import feedstock as fs

from . import pages
from .torch_train import Model

REPLACEMENTS = {
    "s3://corpus/imagenet/val": "",  # set by run()
    "dist.init_process_group() ": "assert dist.is_initialized() ",
    '"cuda"': '"cpu"',
    "(256)": "(40)",
    "(224)": "(32)",
    "1000": "10",  # the model's classes
    'batch["label"]': '(batch["label"] % 10)',
}


def run(page: str, pictures: str, rows: int) -> None:
    """Evaluates with `rows` rows for each rank, twice."""
    namespace: dict[str, Any] = {}
    changed = {**REPLACEMENTS, "s3://corpus/imagenet/val": pictures, "batch(64,": f"batch({rows},"}
    pages.run(page, changed, namespace)
    torch.manual_seed(3)
    model = Model()
    expected = alone(namespace["evaluation"], model)
    for _ in range(2):
        found = namespace["evaluate"](model)
        assert found["top1"] == expected["top1"], (found, expected)
        assert found["top5"] == expected["top5"], (found, expected)
        torch.testing.assert_close(found["loss"], expected["loss"])
    ids: list[int] = []
    padded = 0
    for batch in namespace["batches"]:
        ids += batch["sample_ids"][batch["valid"]].tolist()
        padded += int((~batch["valid"]).sum())
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, (ids, padded))
    assert sorted(sample for ids, _ in everywhere for sample in ids) == list(range(200))
    assert any(padded for _, padded in everywhere), "without padding, the page's mask tested nothing"


@torch.no_grad()
def alone(evaluation: fs.Pipeline, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the same metrics of one process, by definition, of a pipeline without padding."""
    model.eval()
    with evaluation.batch(200).loader(output="torch") as loader:
        (batch,) = list(loader)
        logits, labels = model(batch["image"]), batch["label"] % 10
        assert bool(batch["valid"].all())
        best = logits.topk(5).indices == labels[:, None]
        return {
            "top1": best[:, 0].float().sum() / 200,
            "top5": best.any(1).float().sum() / 200,
            "loss": cross_entropy(logits, labels),
        }
