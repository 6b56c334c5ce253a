"""Trains a vision transformer on ImageNet with the augmentation of timm and DeiT.

    python examples/python/imagenet_timm.py                              # small: sample data, a minute on two cores
    torchrun --nproc-per-node 2 examples/python/imagenet_timm.py         # the same on two ranks
    torchrun --nproc-per-node 8 examples/python/imagenet_timm.py --real \\
        --train 's3://corpus/imagenet/data/train-*.parquet' --val 's3://corpus/imagenet/data/validation-*.parquet'

The recipe: random crops and flips, RandAugment `rand-m9-mstd0.5-inc1`, random erasing, mixup or CutMix, smoothed
labels, a cosine schedule after a warm-up, and an exponential moving average (EMA) of the weights, which is evaluated.
`--real` trains torchvision's ViT-B/16 at 224 px for 300 epochs. Comments mark the lines that use feedstock.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import feedstock as fs
from feedstock.torch import loader as torch_loader
from imagenet_resnet import (
    end,
    evaluate,
    finished,
    learning_rate,
    made_up_pictures,
    options_of,
    parser,
    say,
    start,
)

SMOOTHING = 0.1


def main() -> None:
    options = options_of(parser(__doc__ or ""))
    device = start()
    train_uri = options.train or made_up_pictures(256)

    # feedstock: each sample's random numbers depend on seed, epoch and sample only, so all world sizes train on the
    # same images.
    train = (
        fs.Dataset(train_uri)
        .map(
            "image",
            fs.decode_image(),
            fs.random_resized_crop(options.size, filter="bicubic"),
            fs.horizontal_flip(),
            fs.timm_rand_augment(9, magnitude_std=0.5, increasing=True),
            fs.random_erasing(0.25, scale=(0.02, 1 / 3), value="random"),
        )
        .shuffle(seed=7)
        .batch(options.batch_size)
    )
    centre = (
        fs.decode_image(),
        fs.resize(options.size * 8 // 7, filter="bicubic"),
        fs.center_crop(options.size),
    )
    # Evaluation also needs the last, incomplete batch; its padding is marked in batch["valid"].
    val = fs.Dataset(options.val or train_uri).map("image", *centre).batch(options.batch_size, tail="pad")

    # feedstock: the device normalizes, and mixes the rows of a batch. All ranks draw the same weight for a step.
    mixed = fs.finish_pictures(layout="channels_last", mix=fs.mixup_cutmix(mixup_alpha=0.8, cutmix_alpha=1.0))
    train_loader = torch_loader(train, device=device, finish={"image": mixed})
    val_loader = torch_loader(val, device=device, finish=finished(), restart=True)

    torch.manual_seed(0)
    network = (torchvision.models.vit_b_16() if options.real else tiny_network()).to(device)
    # Buffers, such as the statistics of batch normalization, are averaged before each evaluation instead.
    model = DistributedDataParallel(network, broadcast_buffers=False)
    decay = 0.9999 if options.real else 0.9
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
    rate = 5e-4 * (train_loader.global_batch_size or 0) / 512 if options.real else 2e-3
    optimizer = torch.optim.AdamW(groups(network), lr=rate, weight_decay=0.05)

    while (epoch := train_loader.epoch) < options.epochs:
        model.train()
        steps, total = len(train_loader), torch.zeros((), device=device)
        for step, batch in enumerate(train_loader):
            progress = (epoch + step / steps) / options.epochs
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(rate, progress, warm_up=5 / 300)
            loss = loss_of(model(batch["image"]), batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(network)
            total += loss.detach()
        # feedstock: proof that this rank received exactly its planned samples
        assert (train_loader.ledger() or {})["exact"]
        synchronize(average)
        right, seen = evaluate(average, val_loader, device)
        dist.all_reduce(total)
        loss_a_step = total.item() / steps / dist.get_world_size()
        say(
            f"epoch {epoch}: loss {loss_a_step:.3f}, {right} of {seen} right, weights {checksum(average):.6f}"
        )
    end()


def loss_of(scores: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the cross entropy with both labels of a mixed row, smoothed."""
    own, partner = (
        nn.functional.cross_entropy(scores, batch[labels], label_smoothing=SMOOTHING, reduction="none")
        for labels in ("label", "label_partner")
    )
    weight = batch["mix_weight"]
    return (weight * own + (1 - weight) * partner).mean()


def groups(network: nn.Module) -> list[dict[str, object]]:
    """Returns the parameters in two groups: biases and scales of normalization have no weight decay."""
    parameters = list(network.parameters())
    decayed = [parameter for parameter in parameters if parameter.ndim > 1]
    return [
        {"params": decayed},
        {
            "params": [parameter for parameter in parameters if parameter.ndim <= 1],
            "weight_decay": 0.0,
        },
    ]


def synchronize(average: nn.Module) -> None:
    """Averages the buffers over the ranks. Parameters are equal on all ranks, since their gradients are."""
    for buffer in average.module.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()


def checksum(average: nn.Module) -> float:
    """Returns the mean magnitude of all weights and buffers, which must be equal on all ranks."""
    values = torch.cat([value.flatten().double() for value in average.module.state_dict().values()])
    mean = values.abs().mean()
    bounds = torch.stack([mean, -mean])
    dist.all_reduce(bounds, op=dist.ReduceOp.MAX)
    assert bounds[0] == -bounds[1], "ranks have different weights"
    return mean.item()


def tiny_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 8, stride=8),
        nn.BatchNorm2d(32),
        nn.GELU(),
        nn.Conv2d(32, 64, 2, stride=2),
        nn.BatchNorm2d(64),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 1000),
    )


if __name__ == "__main__":
    main()
