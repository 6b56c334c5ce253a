"""Trains on a torch Dataset of one's own, transformed by torchvision v2 or albumentations, by `fs.from_torch`.

    python examples/python/own_dataset.py                                   # sample data, a minute on two cores
    torchrun --nproc-per-node 2 examples/python/own_dataset.py              # the same on two ranks
    torchrun --nproc-per-node 2 examples/python/own_dataset.py --albumentations
    torchrun --nproc-per-node 8 examples/python/own_dataset.py --images /data/imagenet/train --size 224 --batch-size 64

The data set is unchanged: `__getitem__` draws from torch's and albumentations' generators as it likes. feedstock seeds
them by the sample, so a resumed run and other numbers of ranks and processes get the same pixels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torchvision
from PIL import Image, ImageDraw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.transforms import v2

import feedstock as fs
from feedstock.torch import loader as torch_loader
from imagenet_resnet import end, say, start, tiny_resnet

Transform = Callable[[Image.Image], torch.Tensor]


class Shapes(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Draws discs (class 0) and squares (class 1)."""

    def __init__(self, length: int, transform: Transform) -> None:
        self.length, self.transform = length, transform

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        place = np.random.default_rng(index)
        image = Image.new("RGB", (80, 80), tuple(place.integers(0, 100, 3).tolist()))
        left, top, side = place.integers((5, 5, 30), (35, 35, 40)).tolist()
        draw = ImageDraw.Draw(image)
        shape = draw.ellipse if index % 2 == 0 else draw.rectangle
        shape((left, top, left + side, top + side), fill=tuple(place.integers(150, 256, 3).tolist()))
        return self.transform(image), index % 2


def by_torchvision(size: int) -> Transform:
    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(size, scale=(0.6, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.3, 0.3, 0.3),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )


class ByAlbumentations:
    """Has a composition as an attribute, where feedstock finds it."""

    def __init__(self, size: int) -> None:
        import albumentations as A

        self.chain = A.Compose(
            [
                A.RandomResizedCrop((size, size), scale=(0.6, 1.0)),
                A.HorizontalFlip(p=0.5),
                A.ColorJitter(p=1.0),
                A.CoarseDropout(p=0.5),
                A.ToFloat(255),
            ]
        )

    def __call__(self, image: Image.Image) -> torch.Tensor:
        pixels = self.chain(image=np.asarray(image))["image"]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", help="folder of images in a folder for each class (default: sample data)")
    parser.add_argument("--size", type=int, default=48, help="height and width of crops (default 48)")
    parser.add_argument("--batch-size", type=int, default=16, help="rows per rank (default 16)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-workers", type=int, default=2, help="processes of each rank (default 2)")
    parser.add_argument("--albumentations", action="store_true", help="transform by albumentations")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    device = start()
    transform = ByAlbumentations(options.size) if options.albumentations else by_torchvision(options.size)
    dataset: Any = Shapes(320, transform)
    if options.images:
        dataset = torchvision.datasets.ImageFolder(options.images, transform)
    loader = torch_loader(
        fs.from_torch(dataset, identity="1", num_workers=options.num_workers)
        .shuffle(seed=7)
        .batch(options.batch_size)
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(tiny_resnet().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    while (epoch := loader.epoch) < options.epochs:
        total = torch.zeros(2, device=device)
        for images, labels in loader:
            labels = labels.to(device)
            loss = nn.functional.cross_entropy(model(images.to(device)), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += torch.stack([loss.detach() * len(labels), torch.tensor(len(labels), device=device)])
        ledger = loader.ledger()
        assert ledger is not None
        assert ledger["exact"], "an item was lost or repeated"
        dist.all_reduce(total)
        say(f"epoch {epoch}: mean loss {float(total[0] / total[1]):.3f} over {int(total[1])} samples")
    loader.close()
    end()


if __name__ == "__main__":
    main()
