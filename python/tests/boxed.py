"""Images with boxes, labels and keypoints, and what loaders make of them, for tests of joint maps."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import feedstock as fs

SAMPLES, SEED = 40, 5
#: torchvision's ratios of a resize are float32.
TOLERANCE = 1e-4


def size_of(sample: int) -> tuple[int, int]:
    """Returns height and width."""
    return 60 + sample, 110 - sample


def corners_of(sample: int) -> np.ndarray:
    """Returns 0 to 5 boxes of a sample, [n, 4], some of them small, without an area, or partly outside."""
    generator = np.random.default_rng(sample)
    height, width = size_of(sample)
    middles = generator.uniform((0, 0), (width, height), (sample % 6, 2))
    halves = np.exp(generator.uniform(-1, 3.5, (sample % 6, 2)))
    corners = np.concatenate([middles - halves, middles + halves], axis=1)
    corners[:1] = corners[:1].clip(0, [width, height, width, height])
    return corners.astype(np.float32)


def labels_of(sample: int) -> list[int]:
    return [100 * sample + index for index in range(sample % 6)]


def points_of(sample: int) -> np.ndarray:
    """Returns 4 points of a sample with visibilities 1 or 2, some of them outside."""
    generator = np.random.default_rng(1000 + sample)
    height, width = size_of(sample)
    places = generator.uniform((-5, -5), (width + 5, height + 5), (4, 2))
    return np.concatenate([places, generator.integers(1, 3, (4, 1))], axis=1).astype(np.float32)


def image_of(sample: int) -> bytes:
    height, width = size_of(sample)
    pixels = np.random.default_rng(sample).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write(folder: Path, **columns: Any) -> Path:
    folder.mkdir(exist_ok=True)
    samples = range(SAMPLES)
    table = {
        "id": pa.array(samples, pa.int64()),
        "image": pa.array([image_of(sample) for sample in samples], pa.binary()),
        "boxes": pa.array(
            [corners_of(sample).tolist() for sample in samples], pa.list_(pa.list_(pa.float32()))
        ),
        "category": pa.array([labels_of(sample) for sample in samples], pa.list_(pa.int32())),
        "crowd": pa.array(
            [[index % 2 == 0 for index in labels_of(s)] for s in samples], pa.list_(pa.bool_())
        ),
        "points": pa.array([points_of(sample).ravel() for sample in samples], pa.list_(pa.float64())),
        **columns,
    }
    pq.write_table(
        pa.table({name: value for name, value in table.items() if value is not None}), folder / "a.parquet"
    )
    return folder


COLUMNS = {
    "image": fs.image(),
    "boxes": fs.boxes("xyxy", along=("category", "crowd")),
    "points": fs.keypoints(flip_pairs=[(0, 3)]),
}


def rows(pipeline: fs.Pipeline, **options: Any) -> dict[int, dict[str, np.ndarray]]:
    """Returns a copy of each sample's tensors by its id, without padding."""
    found = rows_of_rank(pipeline, **options)
    assert len(found) == SAMPLES
    return found


def rows_of_rank(pipeline: fs.Pipeline, **options: Any) -> dict[int, dict[str, np.ndarray]]:
    """Returns those of one epoch of one rank, and compares the padding with zeros."""
    found = {}
    loader = pipeline.shuffle(seed=SEED).batch(8).epochs(1).loader(output="numpy", **options)
    for batch in loader:
        lengths = {name.removesuffix("_length") for name in batch if name.endswith("_length")}
        for row, identity in enumerate(batch["id"]):
            sample = {name: np.array(value[row]) for name, value in batch.items() if name not in lengths}
            for name in lengths:
                length = batch[f"{name}_length"][row]
                sample[name] = np.array(batch[name][row][:length])
                assert (batch[name][row][length:] == 0).all()
            found[int(identity)] = sample
    return found
