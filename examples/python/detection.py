"""Trains object detection with DistributedDataParallel: images, boxes and their categories.

    python examples/python/detection.py                                 # small: sample data, a minute on two cores
    torchrun --nproc-per-node 2 examples/python/detection.py            # the same on two ranks
    torchrun --nproc-per-node 8 examples/python/detection.py --real --classes 91 \\
        --train 's3://corpus/coco/train-*.parquet' --val 's3://corpus/coco/val-*.parquet'

The data has the columns `image` (encoded), `bbox` (a list of COCO's left, top, width and height for each sample) and
`category_id` (a list with an integer from 1 for each box). `--real` trains torchvision's Faster R-CNN with ResNet-50
at 640 px.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
import torchvision
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.ops import box_convert, box_iou

import feedstock as fs
from feedstock.torch import loader as torch_loader
from imagenet_resnet import end, say, start

Target = dict[str, torch.Tensor]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", action="store_true", help="train Faster R-CNN at 640 px")
    parser.add_argument("--train", help="URI of the training data (default: sample data)")
    parser.add_argument("--val", help="URI of the validation data (default: the training data)")
    parser.add_argument(
        "--classes",
        type=int,
        default=3,
        help="number of classes with 0, none (default 3, as the sample data)",
    )
    parser.add_argument("--batch-size", type=int, default=8, help="rows per rank (default 8)")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    if options.real and not options.train:
        parser.error("--real needs --train with the URI of the training data")
    options.size = 640 if options.real else 64
    return options


def main() -> None:
    options = arguments()
    device = start()
    train_uri = options.train or made_up_scenes(128, options.classes)

    # feedstock: boxes follow the crop of their image; categories of dropped boxes are dropped.
    columns = {"image": fs.image(), "bbox": fs.boxes("xywh", min_size=4, along=("category_id",))}
    crop = fs.random_resized_crop(options.size, scale=(0.5, 1.0)), fs.horizontal_flip()
    train = fs.Dataset(train_uri).map(columns, *crop, fs.color_jitter(0.2, 0.2), fs.to_f32(), fs.to_chw())
    whole = fs.resize((options.size, options.size)), fs.to_f32(), fs.to_chw()
    val = fs.Dataset(options.val or train_uri).map(columns, *whole)
    train_loader = torch_loader(train.shuffle(seed=7).batch(options.batch_size), device=device)
    # Evaluation also needs the last, incomplete batch; its padding is marked in batch["valid"].
    val_loader = torch_loader(val.batch(options.batch_size, tail="pad"), device=device, restart=True)

    torch.manual_seed(0)
    model = DistributedDataParallel(network(options).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4 if options.real else 3e-3)
    while (epoch := train_loader.epoch) < options.epochs:
        model.train()
        for batch in train_loader:
            losses = model(list(batch["image"]), targets(batch))
            sum(losses.values()).backward()
            optimizer.step()
            optimizer.zero_grad()
        # feedstock: proof that this rank received exactly its planned samples
        assert (train_loader.ledger() or {})["exact"]
        found, boxes = evaluate(model, val_loader, device)
        say(f"epoch {epoch}: {found / max(boxes, 1):.2f} of {boxes} boxes found")
    end()


def targets(batch: fs.Batch | dict[str, torch.Tensor]) -> list[Target]:
    """Returns each sample's boxes and labels without padding, as torchvision's detectors take them."""
    result = []
    for row, count in enumerate(batch["bbox_length"].tolist()):
        boxes = box_convert(batch["bbox"][row, :count], "xywh", "xyxy")
        result.append({"boxes": boxes, "labels": batch["category_id"][row, :count]})
    return result


def network(options: argparse.Namespace) -> nn.Module:
    if options.real:
        return torchvision.models.detection.fasterrcnn_resnet50_fpn_v2(num_classes=options.classes)
    return Grid(options.classes)


class Grid(nn.Module):
    """A small detector, called as torchvision's: each of 8 × 8 cells predicts the box whose middle is in it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(layer for sides in ((3, 16), (16, 32), (32, 64)) for layer in self.halving(*sides)),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, classes + 4, 1),
        )

    @staticmethod
    def halving(channels: int, more: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(channels, more, 3, stride=2, padding=1), nn.BatchNorm2d(more), nn.ReLU()

    def forward(
        self, images: list[torch.Tensor], wanted: list[Target] | None = None
    ) -> dict[str, torch.Tensor] | list[Target]:
        batch = torch.stack(images)
        cell = batch.shape[-1] / 8
        predicted = self.layers(batch).permute(0, 2, 3, 1)
        scores, places = predicted[..., :-4], predicted[..., -4:]
        if wanted is None:
            return [self.detected(*one, cell) for one in zip(scores, places, strict=True)]
        classes = torch.zeros(scores.shape[:3], dtype=torch.int64, device=batch.device)
        boxes = torch.zeros_like(places)
        for row, target in enumerate(wanted):
            middle = box_convert(target["boxes"], "xyxy", "cxcywh") / cell
            x, y = middle[:, 0].long().clamp(0, 7), middle[:, 1].long().clamp(0, 7)
            classes[row, y, x] = target["labels"]
            boxes[row, y, x] = torch.cat([middle[:, :2] - torch.stack([x, y], 1), middle[:, 2:]], 1)
        inside = classes > 0
        weight = torch.ones(scores.shape[-1], device=batch.device)
        weight[0] = 0.2  # most cells have no box
        return {
            "classes": nn.functional.cross_entropy(scores.flatten(0, 2), classes.flatten(), weight),
            "boxes": nn.functional.smooth_l1_loss(places[inside], boxes[inside])
            if inside.any()
            else 0 * places.sum(),
        }

    @staticmethod
    def detected(scores: torch.Tensor, places: torch.Tensor, cell: float) -> Target:
        labels = scores.argmax(-1)
        y, x = torch.nonzero(labels, as_tuple=True)
        place = places[y, x]
        middle = torch.cat([place[:, :2] + torch.stack([x, y], 1), place[:, 2:]], 1) * cell
        return {"boxes": box_convert(middle, "cxcywh", "xyxy"), "labels": labels[y, x]}


@torch.inference_mode()
def evaluate(model: nn.Module, loader: fs.Loader, device: torch.device) -> tuple[int, int]:
    """Returns the number of boxes that were found with their label, and of all. Each sample counts once."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for batch in loader:
        detections = model(list(batch["image"]))
        for detection, target, valid in zip(detections, targets(batch), batch["valid"], strict=True):
            if not valid or not len(target["boxes"]):
                continue
            same = target["labels"][:, None] == detection["labels"]
            overlap = box_iou(target["boxes"], detection["boxes"]) * same
            found = (overlap > 0.5).any(dim=1)
            counts += torch.tensor([int(found.sum()), len(found)], device=device)
    dist.all_reduce(counts)
    return int(counts[0]), int(counts[1])


def made_up_scenes(samples: int, classes: int) -> str:
    """Makes images of coloured rectangles and their boxes, on one rank, and keeps them for the next run."""
    folder = Path(tempfile.gettempdir()) / f"feedstock-boxes-{samples}-{classes}"
    if dist.get_rank() == 0 and not (folder / "scenes.parquet").exists():
        folder.mkdir(exist_ok=True)
        generator = np.random.default_rng(0)
        colours = generator.integers(0, 256, (classes, 3))
        scenes = [scene(generator, colours) for _ in range(samples)]
        image, boxes, labels = zip(*scenes, strict=True)
        pq.write_table(
            pa.table({"image": image, "bbox": boxes, "category_id": labels}),
            folder / "new",
            row_group_size=16,
        )
        (folder / "new").rename(folder / "scenes.parquet")
    dist.barrier()
    return str(folder / "scenes.parquet")


def scene(generator: np.random.Generator, colours: np.ndarray) -> tuple[bytes, list[list[float]], list[int]]:
    """Returns a JPEG, its boxes and their labels, from 1."""
    image = generator.normal(128, 12, (96, 96, 3))
    boxes, labels = [], []
    for column in range(2):
        for row in range(2):
            if generator.random() < 0.3:
                continue
            label = int(generator.integers(1, len(colours)))
            width, height = generator.integers(16, 40, 2)
            left, top = (
                48 * place + generator.integers(0, 48 - side)
                for place, side in ((column, width), (row, height))
            )
            image[top : top + height, left : left + width] = colours[label]
            boxes.append([float(side) for side in (left, top, width, height)])
            labels.append(label)
    buffer = io.BytesIO()
    Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=95)
    return buffer.getvalue(), boxes, labels


if __name__ == "__main__":
    main()
