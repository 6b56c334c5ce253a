"""Compares an object detector's input with torchvision v2 in a DataLoader, on this machine.

    scripts/python benches/python/detection.py                # both parts, rounds alternate
    scripts/python benches/python/detection.py ssd            # one of them: crop, ssd

`crop`: decode, one random resized crop to 320 px of image and boxes, flip. `ssd`: the augmentation of SSD, which is
zooming out, a crop that the boxes draw, flip, and resizing to 300 px. The peer does the same on PIL images and
tv_tensors in a DataLoader with a process for each core, clamps boxes, and drops empty ones with their labels. Samples
per second after the first batch. Images are JPEGs of about 500 × 375 px with 1 to 20 boxes.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2
from views import one_thread, rate

import feedstock as fs

ROUNDS = 3
BATCH = 16
OURS: dict[str, list[fs.Op]] = {
    "crop": [fs.random_resized_crop(320, scale=(0.3, 1.0)), fs.horizontal_flip()],
    "ssd": [
        fs.random_zoom_out(0.5, side_range=(1.0, 4.0)),
        fs.random_iou_crop(),
        fs.horizontal_flip(),
        fs.resize((300, 300)),
    ],
}
# The last two are what fs.boxes does.
CLEAN = [v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes()]
THEIRS = {
    "crop": [v2.RandomResizedCrop(320, scale=(0.3, 1.0)), v2.RandomHorizontalFlip()],
    "ssd": [
        v2.RandomZoomOut(side_range=(1.0, 4.0)),
        v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip(),
        v2.Resize((300, 300)),
    ],
}


class Detection(torch.utils.data.Dataset[Any]):
    """The same samples for torchvision."""

    def __init__(self, table: pa.Table, part: str) -> None:
        self.images = table["image"].to_pylist()
        self.boxes = [np.asarray(one, np.float32).reshape(-1, 4) for one in table["bbox"].to_pylist()]
        self.labels = [torch.tensor(one) for one in table["category_id"].to_pylist()]
        self.chain = v2.Compose([*THEIRS[part], *CLEAN, v2.PILToTensor()])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        image = Image.open(io.BytesIO(self.images[index])).convert("RGB")
        boxes = tv_tensors.BoundingBoxes(
            self.boxes[index], format="XYXY", canvas_size=(image.height, image.width)
        )
        image, target = self.chain(image, {"boxes": boxes, "labels": self.labels[index]})
        return image, target["boxes"], target["labels"]


def collate(
    samples: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
) -> tuple[Any, ...]:
    images, boxes, labels = zip(*samples, strict=True)
    return torch.stack(images), list(boxes), list(labels)


def with_boxes(images: list[bytes]) -> pa.Table:
    """Returns the images with 1 to 20 random boxes each, in pixels (left, top, right, bottom)."""
    generator = np.random.default_rng(5)
    boxes, labels = [], []
    for encoded in images:
        width, height = Image.open(io.BytesIO(encoded)).size
        count = int(generator.integers(1, 21))
        first, second = generator.uniform(0, 1, (2, count, 2)) * (width, height)
        edges = np.concatenate([np.minimum(first, second), np.maximum(first, second) + 1], 1)
        boxes.append(edges.astype(np.float32).ravel().tolist())
        labels.append(generator.integers(1, 91, count).tolist())
    kinds = {
        "bbox": pa.array(boxes, pa.list_(pa.float32())),
        "category_id": pa.array(labels),
    }
    return pa.table({"image": pa.array(images, pa.binary()), **kinds})


def compare(part: str, uri: str, table: pa.Table, processes: int) -> None:
    columns = {"image": fs.image(), "bbox": fs.boxes("xyxy", along=("category_id",))}
    pipeline = fs.Dataset(uri).map(columns, OURS[part]).batch(BATCH).options(threads=processes)
    ratios = []
    for turn in range(ROUNDS):
        with pipeline.epochs(1).loader(output="torch") as loader:
            ours = rate(loader, "image")
        peer = torch.utils.data.DataLoader(
            Detection(table, part),
            BATCH,
            num_workers=processes,
            worker_init_fn=one_thread,
            collate_fn=collate,
            drop_last=True,
        )
        theirs = rate(peer, 0)
        ratios.append(ours / theirs)
        print(
            f"{part}, round {turn}: {ours:.1f} samples/s, {theirs:.1f} of the DataLoader",
            flush=True,
        )
    print(
        f"{part}: {statistics.median(ratios):.2f} x torchvision v2 in a DataLoader of {processes} processes"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=[*OURS, None], help="default: both")
    parser.add_argument("--samples", type=int, default=4096)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        images, data = Path(folder) / "images", Path(folder) / "data"
        command = [sys.executable, "-m", "feedstock", "synth", "imagenet", str(images)]
        subprocess.run(
            [*command, "--samples", str(options.samples), "--layout", "parquet"],
            check=True,
        )
        stored = [pq.read_table(path, columns=["image"]) for path in sorted(images.rglob("*.parquet"))]
        encoded = [one["bytes"] for part in stored for one in part["image"].to_pylist()]
        table = with_boxes(encoded)
        data.mkdir()
        pq.write_table(table, data / "train.parquet", row_group_size=256)
        for part in OURS:
            if options.part in (None, part):
                compare(part, str(data), table, len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    main()
