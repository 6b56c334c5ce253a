"""Trains SimCLR (Chen et al. 2020) with DistributedDataParallel: two views of each image, and negatives of all ranks.

    python examples/python/simclr.py                                        # small: sample data, a minute on two cores
    torchrun --nproc-per-node 2 examples/python/simclr.py                   # the same on two ranks
    torchrun --nproc-per-node 8 examples/python/simclr.py --real --train s3://corpus/imagenet/train

The two views of an image are to have similar features, and views of other images different ones (NT-Xent). Each rank
compares its views with those of all ranks. `--real` trains a ResNet-50 with crops of 224 px, 128 images per rank.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import feedstock as fs
from feedstock.torch import loader as torch_loader
from imagenet_resnet import end, made_up_pictures, say, start


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", action="store_true", help="train a ResNet-50 at 224 px for 100 epochs")
    parser.add_argument("--train", help="URI of the images (default: sample data)")
    parser.add_argument("--batch-size", type=int, help="images per rank (default 16; with --real 128)")
    parser.add_argument("--epochs", type=int, help="default 3; with --real 100")
    parser.add_argument("--temperature", type=float, default=0.2)
    options = parser.parse_args()
    if options.real and not options.train:
        parser.error("--real needs --train with the URI of the training data")
    options.batch_size = options.batch_size or (128 if options.real else 16)
    options.epochs = options.epochs or (100 if options.real else 3)
    options.size = 224 if options.real else 32
    return options


def main() -> None:
    options = arguments()
    device = start()

    # feedstock: each image is decoded once; its two views draw different random numbers.
    chain = [
        fs.random_resized_crop(options.size, scale=(0.2, 1.0)),
        fs.horizontal_flip(),
        fs.random_apply([fs.color_jitter(0.8, 0.8, 0.8, 0.2)], 0.8),
        fs.grayscale(0.2),
        fs.random_apply([fs.gaussian_blur(23 if options.real else 3, (0.1, 2.0))], 0.5),
    ]
    data = fs.Dataset(options.train or made_up_pictures(192))
    views = fs.views({"one": chain, "other": chain})
    pipeline = data.map("image", fs.decode_image(), views).shuffle(seed=7).batch(options.batch_size)
    finish = {name: fs.finish_pictures(layout="channels_last") for name in ("one", "other")}
    loader = torch_loader(pipeline, device=device, finish=finish)

    torch.manual_seed(0)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(network(options)) if options.real else network(options)
    model = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    while (epoch := loader.epoch) < options.epochs:
        sums = torch.zeros(3, device=device)
        for batch in loader:
            features = functional.normalize(model(torch.cat([batch["one"], batch["other"]])), dim=1)
            loss, right = nt_xent(features, options.temperature)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            sums += torch.stack([loss.detach(), right, torch.ones_like(right)])
        # feedstock: proof that this rank received exactly its planned samples
        assert (loader.ledger() or {})["exact"]
        dist.all_reduce(sums)
        loss, right = (sums[:2] / sums[2]).tolist()
        say(f"epoch {epoch}: loss {loss:.4f}, {right:.3f} of the views are closest to their partner")
    end()


def network(options: argparse.Namespace) -> nn.Module:
    """Returns an encoder and its head of projections."""
    if options.real:
        encoder = torchvision.models.resnet50()
        encoder.fc = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 128))
        return encoder
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 64),
    )


def nt_xent(features: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss of this rank's views against those of all ranks, and the share that is closest to its partner.

    `features` has the first views of this rank's images, then the second ones: [2 rows, features], of length 1.
    """
    ranks = [each.chunk(2) for each in all_gather(features)]  # gradients flow to every rank
    everyone = torch.cat([each[0] for each in ranks] + [each[1] for each in ranks])
    rows, images = len(features) // 2, len(everyone) // 2
    own = dist.get_rank() * rows + torch.arange(rows, device=features.device)
    own = torch.cat([own, images + own])  # where this rank's views are among all
    scores = features @ everyone.T / temperature
    scores[
        torch.arange(2 * rows, device=features.device), own
    ] = -torch.inf  # a view is not compared with itself
    partners = (own + images) % (2 * images)
    return functional.cross_entropy(scores, partners), (scores.argmax(dim=1) == partners).float().mean()


if __name__ == "__main__":
    main()
