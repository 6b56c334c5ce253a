"""Functions of rows through every way into a trainer."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from adapters import (
    ADAPTERS,
    by_accelerate,
    by_lightning,
    by_ray_torch_batches,
    by_trainer,
    made,
    pipeline,
    shard,
    stand_in,
)

import feedstock as fs

__all__ = ["made", "pipeline", "stand_in"]  # fixtures


def halved(row: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"image": row["image"] // 2}


@pytest.fixture(scope="module")
def expected(pipeline: fs.Pipeline) -> dict[int, torch.Tensor]:
    """Returns half of every image by sample id."""
    with pipeline.epochs(1).loader(output="torch") as loader:
        return {
            int(sample): image.clone() // 2
            for batch in loader
            for sample, image in zip(batch["sample_ids"], batch["image"], strict=True)
        }


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_trainers_get_the_results(
    pipeline: fs.Pipeline, expected: dict[int, torch.Tensor], adapter: Any
) -> None:
    mapped = pipeline.map_rows(halved, num_workers=1)
    seen: dict[int, torch.Tensor] = {}
    for batch in adapter(mapped):
        seen.update({int(s): image for s, image in zip(batch["sample_ids"], batch["image"], strict=True)})
    assert seen.keys() == expected.keys()
    assert all(torch.equal(image, expected[sample]) for sample, image in seen.items())


@pytest.mark.parametrize("adapter", [by_accelerate, by_lightning, by_ray_torch_batches, by_trainer])
def test_batches_stay_in_host_memory_where_the_trainer_has_a_gpu(
    pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any], adapter: Any
) -> None:
    assert len(list(adapter(pipeline.map_rows(halved, num_workers=1)))) == 10
    assert made[-1][1]["device"] is None


def test_rays_other_forms(pipeline: fs.Pipeline) -> None:
    mapped = pipeline.map_rows(halved, executor="thread")
    batch = next(iter(shard(mapped).iter_batches()))
    assert type(batch["image"]).__name__ == "ndarray"
    with pytest.raises(fs.ConfigError, match="not a table"):
        next(iter(shard(mapped).iter_batches(batch_format="pyarrow")))
    with pytest.raises(fs.ConfigError, match="there is no schema"):
        shard(mapped).schema()
    from feedstock.ray import to_ray_data

    with pytest.raises(fs.ConfigError, match="takes no pipeline with map_python or map_rows"):
        to_ray_data(mapped)
