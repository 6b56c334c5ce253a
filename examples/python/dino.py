"""Trains DINO (Caron et al. 2021) with DistributedDataParallel: two large and eight small crops of each image.

    python examples/python/dino.py                                          # small: sample data, a minute on two cores
    torchrun --nproc-per-node 2 examples/python/dino.py                     # the same on two ranks
    torchrun --nproc-per-node 8 examples/python/dino.py --real --train s3://corpus/imagenet/train

A student sees all crops, a teacher the two large ones. The student learns to predict the teacher's output for another
crop of the same image. The teacher is the moving average of the student, and its output is centred and sharpened.
`--real` trains a ViT-S/16 with crops of 224 and 96 px, 64 images per rank.
"""

from __future__ import annotations

import argparse
import copy
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import feedstock as fs
from feedstock.torch import loader as torch_loader
from imagenet_resnet import end, made_up_pictures, say, start

GLOBAL = ("global_1", "global_2")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", action="store_true", help="train a ViT-S/16 at 224 px for 100 epochs")
    parser.add_argument("--train", help="URI of the images (default: sample data)")
    parser.add_argument("--batch-size", type=int, help="images per rank (default 8; with --real 64)")
    parser.add_argument("--epochs", type=int, help="default 3; with --real 100")
    options = parser.parse_args()
    if options.real and not options.train:
        parser.error("--real needs --train with the URI of the training data")
    options.batch_size = options.batch_size or (64 if options.real else 8)
    options.epochs = options.epochs or (100 if options.real else 3)
    options.sizes = (224, 96) if options.real else (32, 16)
    options.outputs = 65_536 if options.real else 64
    return options


def augment(blur: float, solarize: float = 0.0) -> list[fs.Op]:
    return [
        fs.horizontal_flip(),
        fs.random_apply([fs.color_jitter(0.4, 0.4, 0.2, 0.1)], 0.8),
        fs.grayscale(0.2),
        fs.random_apply([fs.gaussian_blur(9, (0.1, 2.0))], blur),
        fs.solarize(128, solarize),
    ]


def main() -> None:
    options = arguments()
    device = start()

    # feedstock: each image is decoded once for its ten crops. The bytes are normalized on the device.
    large = fs.random_resized_crop(options.sizes[0], scale=(0.4, 1.0), filter="bicubic")
    small = fs.random_resized_crop(options.sizes[1], scale=(0.05, 0.4), filter="bicubic")
    crops = fs.views(
        {
            "global_1": [large, *augment(blur=1.0)],
            "global_2": [large, *augment(blur=0.1, solarize=0.2)],
            "local": (8, [small, *augment(blur=0.5)]),
        }
    )
    data = fs.Dataset(options.train or made_up_pictures(96))
    pipeline = data.map("image", fs.decode_image(), crops).shuffle(seed=7).batch(options.batch_size)
    finish = {name: fs.finish_pictures() for name in (*GLOBAL, "local")}
    loader = torch_loader(pipeline, device=device, finish=finish)

    torch.manual_seed(0)
    student = DistributedDataParallel(network(options).to(device))
    teacher = copy.deepcopy(student.module).requires_grad_(False)
    center = torch.zeros(options.outputs, device=device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, weight_decay=0.04)
    steps = options.epochs * len(loader)
    step = 0
    while (epoch := loader.epoch) < options.epochs:
        losses = []
        for batch in loader:
            targets = teacher(torch.cat([batch[name] for name in GLOBAL])).chunk(2)
            # [rows, 8, 3, h, w]: the crops of one size go through the student together.
            rows, views = batch["local"].shape[:2]
            predicted = student(
                [
                    torch.cat([batch[name] for name in GLOBAL]),
                    batch["local"].flatten(0, 1),
                ]
            )
            students = [
                *predicted[0].chunk(2),
                *predicted[1].view(rows, views, -1).unbind(1),
            ]
            loss = distance(students, targets, center)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            momentum = 1 - (1 - 0.99) * (math.cos(math.pi * step / steps) + 1) / 2
            update(teacher, student.module, momentum)
            center = 0.9 * center + 0.1 * mean_over_ranks(torch.cat(targets))
            losses.append(loss.detach())
            step += 1
        # feedstock: proof that this rank received exactly its planned samples
        assert (loader.ledger() or {})["exact"]
        loss = mean_over_ranks(torch.stack(losses)[:, None]).item()
        spread = spread_of(torch.cat(targets))
        say(f"epoch {epoch}: loss {loss:.4f}, spread of the teacher's outputs {spread:.4f}")
    end()


class Transformer(nn.Module):
    """A small vision transformer, with positions for any size of crop, and a head of projections."""

    def __init__(self, patch: int, width: int, depth: int, heads: int, outputs: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, width, 14, 14) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 64))
        self.last = nn.Linear(64, outputs, bias=False)

    def features(self, image: torch.Tensor) -> torch.Tensor:
        patches = self.patches(image)
        patches = patches + functional.interpolate(self.positions, patches.shape[2:], mode="bicubic")
        tokens = torch.cat(
            [self.first.expand(len(image), -1, -1), patches.flatten(2).transpose(1, 2)],
            dim=1,
        )
        return functional.normalize(self.head(self.blocks(tokens)[:, 0]), dim=1)

    def forward(self, images: torch.Tensor | list[torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(images, list):  # in one call, as DistributedDataParallel needs
            return [self.forward(each) for each in images]
        return functional.linear(self.features(images), functional.normalize(self.last.weight, dim=1))


def network(options: argparse.Namespace) -> Transformer:
    if options.real:
        return Transformer(16, 384, 12, 6, options.outputs)
    return Transformer(8, 48, 2, 3, options.outputs)


def distance(
    students: list[torch.Tensor],
    targets: tuple[torch.Tensor, ...],
    center: torch.Tensor,
) -> torch.Tensor:
    """Returns the cross-entropy between the teacher's output for a crop and the student's for all others."""
    total, pairs = torch.zeros((), device=center.device), 0
    for at, target in enumerate(targets):
        wanted = functional.softmax((target - center) / 0.04, dim=1)
        for other, student in enumerate(students):
            if other != at:
                total = total - (wanted * functional.log_softmax(student / 0.1, dim=1)).sum(1).mean()
                pairs += 1
    return total / pairs


@torch.no_grad()
def update(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    for own, new in zip(teacher.parameters(), student.parameters(), strict=True):
        own.lerp_(new, 1 - momentum)


@torch.no_grad()
def mean_over_ranks(outputs: torch.Tensor) -> torch.Tensor:
    total = outputs.sum(0)
    dist.all_reduce(total)
    return total / (len(outputs) * dist.get_world_size())


@torch.no_grad()
def spread_of(outputs: torch.Tensor) -> float:
    """Returns the standard deviation over images. 0: all images have one output, so the training has collapsed."""
    return float(outputs.std(dim=0).mean())


if __name__ == "__main__":
    main()
