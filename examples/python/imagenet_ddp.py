"""Trains ResNet on ImageNet with DistributedDataParallel.

    python examples/python/imagenet_ddp.py                              # small: sample data, a minute on two cores
    torchrun --nproc-per-node 2 examples/python/imagenet_ddp.py         # the same on two ranks
    torchrun --nproc-per-node 8 examples/python/imagenet_ddp.py --real \\
        --train 's3://corpus/imagenet/data/train-*.parquet' --val 's3://corpus/imagenet/data/validation-*.parquet' \\
        --checkpoint /shared/run1.pt

To resume, run it again with the same --checkpoint: in the middle of an epoch, on any number of ranks, or with another
--batch-size. Each sample of the epoch is still used exactly once. Comments mark the lines that use feedstock.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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
    tiny_resnet,
)


def arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--checkpoint", type=Path, help="file to save to, and to resume from if it exists")
    return options_of(options)


def main() -> None:
    options = arguments()
    device = start()
    train_uri = options.train or made_up_pictures(256)

    # feedstock: the samples, their order and their ops; the same on every rank.
    crop = fs.decode_image(), fs.random_resized_crop(options.size)
    train = fs.Dataset(train_uri).map("image", *crop).shuffle(seed=7).batch(options.batch_size)
    centre = fs.decode_image(), fs.resize(options.size * 8 // 7), fs.center_crop(options.size)
    # Evaluation also needs the last, incomplete batch; its padding is marked in batch["valid"].
    val = fs.Dataset(options.val or train_uri).map("image", *centre).batch(options.batch_size, tail="pad")

    # feedstock: this rank's share. Rank and world size come from torch.distributed.
    # On a GPU, page-locked batches are copied and finished while the model computes.
    train_loader = torch_loader(train, device=device, finish=finished(flip=0.5))
    val_loader = torch_loader(val, device=device, finish=finished(), restart=True)

    torch.manual_seed(0)
    model: nn.Module = torchvision.models.resnet50() if options.real else tiny_resnet()
    model = DistributedDataParallel(model.to(device, memory_format=torch.channels_last))
    peak = 0.1 * (train_loader.global_batch_size or 0) / 256  # Goyal et al. 2017
    optimizer = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.9, weight_decay=1e-4)

    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train_loader.load_state_dict(saved["loader"])  # feedstock: any rank's state fits all ranks
        say(f"resuming at epoch {train_loader.epoch}, sample {train_loader.position}")

    def save() -> None:
        if options.checkpoint and dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            new = options.checkpoint.with_suffix(".new")
            torch.save({**state, "loader": train_loader.state_dict()}, new)
            new.replace(options.checkpoint)

    while (epoch := train_loader.epoch) < options.epochs:
        model.train()
        steps = len(train_loader)
        step = steps - train_loader.steps_left
        for batch in train_loader:
            rate = learning_rate(peak, (epoch + step / steps) / options.epochs)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % max(1, steps // 4) == 0:
                say(f"epoch {epoch} step {step}/{steps}: loss {loss.item():.3f}")
            if step % options.save_every == 0:
                save()
        save()
        right, seen = evaluate(model, val_loader, device)
        # feedstock: proof that this rank received exactly its planned samples
        assert (train_loader.ledger() or {})["exact"]
        say(f"epoch {epoch}: {right} of {seen} right")
    end()


if __name__ == "__main__":
    main()
