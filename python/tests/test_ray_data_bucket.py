"""Ray Data in both directions with data in a bucket."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feedstock as fs

pytest.importorskip("ray.data")

import numpy as np
import ray
import s3
from programs.ray_cluster import RayCluster

from feedstock.ray import from_ray_data, to_ray_data

SAMPLES = 200


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory, imagenet: Path) -> Iterator[Path]:
    """Serves the buckets `corpus`, with images, and `made`, which is empty; returns the folder that has them."""
    root = tmp_path_factory.mktemp("buckets")
    shutil.copytree(imagenet, root / "corpus" / "imagenet")
    (root / "made").mkdir()
    with s3.serve(root):
        yield root


@pytest.fixture(scope="module")
def cluster(buckets: Path) -> Iterator[RayCluster]:
    cluster = RayCluster()
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield cluster
    cluster.close()


def test_from_a_bucket_to_a_bucket_and_back(cluster: RayCluster, buckets: Path, tmp_path: Path) -> None:
    images = fs.Dataset("s3://corpus/imagenet").map("image", fs.decode_image(), fs.resize((8, 8)))
    data = to_ray_data(images.shuffle(seed=7).batch(32), tasks=3)
    executed = tmp_path / "executed"

    def brightness(row: dict[str, Any]) -> dict[str, Any]:
        with executed.open("a") as file:
            file.write(".")
        return {"origin": row["sample_id"], "mean": np.float32(row["image"].mean()), "image": row["image"]}

    made = from_ray_data(data.map(brightness), "s3://made/brightness", catalog="memory")
    times = len(executed.read_text())
    assert times >= SAMPLES
    assert (buckets / "made" / "brightness" / "_SUCCESS").exists()
    again = from_ray_data(data.map(brightness), "s3://made/brightness", catalog="memory")
    assert len(executed.read_text()) == times, "a restarted job made the files again"
    with images.batch(SAMPLES).loader(output="numpy") as loader:
        (expected,) = loader
    pixels = dict(zip(expected["sample_ids"].tolist(), expected["image"], strict=True))
    for dataset in (made, again):
        found = []
        with dataset.shuffle(seed=1).batch(20).loader(output="numpy") as loader:
            for batch in loader:
                for origin, mean, image in zip(batch["origin"], batch["mean"], batch["image"], strict=True):
                    found.append(int(origin))
                    assert (image.reshape(8, 8, 3) == pixels[int(origin)]).all()
                    assert mean == np.float32(pixels[int(origin)].mean())
        assert sorted(found) == list(range(SAMPLES))


def test_a_prefix_with_other_objects(cluster: RayCluster, buckets: Path) -> None:
    (buckets / "made" / "cut").mkdir()
    (buckets / "made" / "cut" / "a.arrow").write_bytes(b"ARROW1")
    with pytest.raises(fs.ConfigError, match="has 1 files but no _SUCCESS: an earlier write was cut off"):
        from_ray_data(ray.data.range(4), "s3://made/cut")
