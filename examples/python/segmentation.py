"""Trains semantic segmentation with DistributedDataParallel: images and masks of classes.

    python examples/python/segmentation.py                              # small: sample data, a minute on two cores
    torchrun --nproc-per-node 2 examples/python/segmentation.py         # the same on two ranks
    torchrun --nproc-per-node 8 examples/python/segmentation.py --real --classes 19 \\
        --train 's3://corpus/streets/train-*.parquet' --val 's3://corpus/streets/val-*.parquet'

The data has the columns `image` and `mask` with encoded images, in Parquet, Arrow IPC or WebDataset. A mask is a PNG
whose values are classes, and 255 where a pixel has none. `--real` trains torchvision's DeepLabV3 with ResNet-50 at
512 px.
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

import feedstock as fs
from feedstock.torch import loader as torch_loader
from imagenet_resnet import end, say, start

IGNORED = 255


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", action="store_true", help="train DeepLabV3 at 512 px")
    parser.add_argument("--train", help="URI of the training data (default: sample data)")
    parser.add_argument("--val", help="URI of the validation data (default: the training data)")
    parser.add_argument(
        "--classes", type=int, default=4, help="number of classes (default 4, as the sample data)"
    )
    parser.add_argument("--batch-size", type=int, default=8, help="rows per rank (default 8)")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    if options.real and not options.train:
        parser.error("--real needs --train with the URI of the training data")
    options.size = 512 if options.real else 64
    return options


def main() -> None:
    options = arguments()
    device = start()
    train_uri = options.train or made_up_scenes(96, options.classes)

    # feedstock: both columns through the same ops, with the same random numbers for a sample.
    columns = {"image": fs.image(), "mask": fs.mask(fill=IGNORED)}
    crop = fs.random_resized_crop(options.size, scale=(0.25, 1.0)), fs.horizontal_flip()
    train = fs.Dataset(train_uri).map(
        columns, *crop, fs.color_jitter(0.3, 0.3, 0.3), fs.normalize(), fs.to_chw()
    )
    whole = fs.resize((options.size, options.size)), fs.normalize(), fs.to_chw()
    val = fs.Dataset(options.val or train_uri).map(columns, *whole)
    train_loader = torch_loader(train.shuffle(seed=7).batch(options.batch_size), device=device)
    # Evaluation also needs the last, incomplete batch; its padding is marked in batch["valid"].
    val_loader = torch_loader(val.batch(options.batch_size, tail="pad"), device=device, restart=True)

    torch.manual_seed(0)
    model = DistributedDataParallel(network(options).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    while (epoch := train_loader.epoch) < options.epochs:
        model.train()
        for batch in train_loader:
            scores = logits(model, batch["image"])
            loss = nn.functional.cross_entropy(scores, batch["mask"].long(), ignore_index=IGNORED)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        # feedstock: proof that this rank received exactly its planned samples
        assert (train_loader.ledger() or {})["exact"]
        mean_iou, pixels = evaluate(model, val_loader, options.classes, device)
        say(f"epoch {epoch}: mean IoU {mean_iou:.3f} over {pixels} pixels")
    end()


def network(options: argparse.Namespace) -> nn.Module:
    if options.real:
        return torchvision.models.segmentation.deeplabv3_resnet50(num_classes=options.classes)
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, options.classes, 1),
    )


def logits(model: nn.Module, image: torch.Tensor) -> torch.Tensor:
    result = model(image)
    return result["out"] if isinstance(result, dict) else result


@torch.inference_mode()
def evaluate(model: nn.Module, loader: fs.Loader, classes: int, device: torch.device) -> tuple[float, int]:
    """Returns the mean intersection over union, and the number of labelled pixels. Each sample counts once."""
    model.eval()
    confusion = torch.zeros(classes, classes, dtype=torch.int64, device=device)
    for batch in loader:
        mask = batch["mask"][batch["valid"]].long()
        predicted = logits(model, batch["image"])[batch["valid"]].argmax(dim=1)
        labelled = mask != IGNORED
        pairs = mask[labelled] * classes + predicted[labelled]
        confusion += pairs.bincount(minlength=classes * classes).view(classes, classes)
    dist.all_reduce(confusion)
    both = confusion.diagonal()
    either = confusion.sum(0) + confusion.sum(1) - both
    return (both / either.clamp(min=1))[either > 0].mean().item(), int(confusion.sum())


def made_up_scenes(samples: int, classes: int) -> str:
    """Makes images of coloured rectangles and their masks, on one rank, and keeps them for the next run."""
    folder = Path(tempfile.gettempdir()) / f"feedstock-scenes-{samples}-{classes}"
    if dist.get_rank() == 0 and not (folder / "scenes.parquet").exists():
        folder.mkdir(exist_ok=True)
        generator = np.random.default_rng(0)
        colours = generator.integers(40, 216, (classes, 3))
        scenes = [scene(generator, colours) for _ in range(samples)]
        table = pa.table({"image": [image for image, _ in scenes], "mask": [mask for _, mask in scenes]})
        pq.write_table(table, folder / "new", row_group_size=16)
        (folder / "new").rename(folder / "scenes.parquet")
    dist.barrier()
    return str(folder / "scenes.parquet")


def scene(generator: np.random.Generator, colours: np.ndarray) -> tuple[bytes, bytes]:
    """Returns a JPEG and the PNG of its mask. The frame has no class."""
    mask = np.full((96, 128), IGNORED, np.uint8)
    mask[4:-4, 4:-4] = 0
    for label in range(1, len(colours)):
        top, left = generator.integers(4, 48), generator.integers(4, 64)
        mask[top : top + generator.integers(16, 44), left : left + generator.integers(16, 60)] = label
    image = colours[np.where(mask == IGNORED, 0, mask)] + generator.normal(0, 12, (*mask.shape, 3))
    return encoded(image.clip(0, 255).astype(np.uint8), "JPEG"), encoded(mask, "PNG")


def encoded(pixels: np.ndarray, form: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
