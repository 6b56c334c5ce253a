"""Trains with an augmentation of one's own in NumPy and Pillow, on every sample, by `map_rows`.

    python examples/python/own_augmentation.py                              # sample data, a minute on two cores
    torchrun --nproc-per-node 2 examples/python/own_augmentation.py         # the same on two ranks
    torchrun --nproc-per-node 8 examples/python/own_augmentation.py --train s3://corpus/imagenet/train --size 224 \\
        --batch-size 64 --num-workers 8

Ops decode and crop. The function then shifts colours, blurs some images and erases a rectangle: what a library such as
albumentations would do in its place. If albumentations is installed, `--albumentations` uses it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image, ImageFilter
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import feedstock as fs
from feedstock.torch import loader as torch_loader
from imagenet_resnet import end, made_up_pictures, say, start, tiny_resnet

Row = dict[str, Any]


def augmented(row: Row, rng: np.random.Generator) -> Row:
    """Returns a normalized image, channels first. Its random numbers come from `rng` only."""
    image = Image.fromarray(row["image"])
    if rng.random() < 0.5:
        image = image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.1, 2.0))))
    pixels = np.asarray(image, dtype=np.float32) / 255
    pixels = pixels * rng.uniform(0.7, 1.3, size=3).astype(np.float32)
    height, width = (side // 4 for side in pixels.shape[:2])
    top, left = rng.integers(pixels.shape[0] - height), rng.integers(pixels.shape[1] - width)
    pixels[top : top + height, left : left + width] = rng.random((height, width, 3), dtype=np.float32)
    return {"image": np.ascontiguousarray(pixels.transpose(2, 0, 1)), "erased": np.int64([top, left])}


def by_albumentations() -> Callable[[Row, np.random.Generator], Row]:
    """Returns a function that seeds the composition by `rng` for every sample."""
    import albumentations as A

    chain = A.Compose([A.GaussianBlur(p=0.5), A.ColorJitter(p=1.0), A.CoarseDropout(p=1.0), A.Normalize()])

    def transformed(row: Row, rng: np.random.Generator) -> Row:
        chain.set_random_seed(int(rng.integers(2**31)))
        pixels = chain(image=row["image"])["image"]
        return {"image": np.ascontiguousarray(pixels.transpose(2, 0, 1))}

    return transformed


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", help="URI of images with the column label (default: sample data)")
    parser.add_argument("--size", type=int, default=48, help="height and width of crops (default 48)")
    parser.add_argument("--batch-size", type=int, default=16, help="rows per rank (default 16)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-workers", type=int, default=2, help="processes of each rank (default 2)")
    parser.add_argument("--albumentations", action="store_true", help="transform by albumentations")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    device = start()
    crop = fs.decode_image(), fs.random_resized_crop(options.size), fs.horizontal_flip()
    loader = torch_loader(
        fs.Dataset(options.train or made_up_pictures(320))
        .map("image", *crop)
        .map_rows(
            by_albumentations() if options.albumentations else augmented,
            inputs=["image"],
            num_workers=options.num_workers,
            version="1",
        )
        .shuffle(seed=7)
        .batch(options.batch_size)
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(tiny_resnet().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    while (epoch := loader.epoch) < options.epochs:
        total = torch.zeros(2, device=device)
        for batch in loader:
            image, label = batch["image"].to(device), batch["label"].to(device)
            loss = nn.functional.cross_entropy(model(image), label)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += torch.stack([loss.detach() * len(label), torch.tensor(len(label), device=device)])
        # Every sample went through the function exactly once.
        ledger = loader.ledger()
        assert ledger is not None
        assert ledger["exact"]
        assert ledger["substituted"] == 0
        dist.all_reduce(total)
        say(f"epoch {epoch}: mean loss {float(total[0] / total[1]):.3f} over {int(total[1])} samples")
    loader.close()
    end()


if __name__ == "__main__":
    main()
