"""Trains ResNet on ImageNet with FSDP2 (`fully_shard`), with sharded checkpoints by torch.distributed.checkpoint.

    python examples/python/imagenet_fsdp2.py                            # small: sample data, a minute on two cores
    torchrun --nproc-per-node 2 examples/python/imagenet_fsdp2.py       # the same on two ranks
    torchrun --nproc-per-node 4 examples/python/imagenet_fsdp2.py --replicate 2     # two replicas of two shards each
    torchrun --nnodes 4 --nproc-per-node 8 ... examples/python/imagenet_fsdp2.py --real --replicate 4 \\
        --train 's3://corpus/imagenet/data/train-*.parquet' --val 's3://corpus/imagenet/data/validation-*.parquet' \\
        --checkpoints /shared/run1

To resume, run it again with the same --checkpoints: in the middle of an epoch, on any number of ranks, or with another
--batch-size. It continues from the last complete checkpoint, and each sample of the epoch is still used exactly once.
Comments mark the lines that use feedstock.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torchvision
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

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
    options.add_argument(
        "--replicate", type=int, default=1, help="replicas of the model, each sharded (HSDP)"
    )
    options.add_argument("--checkpoints", type=Path, help="folder to save to, and to resume from")
    return options_of(options)


def main() -> None:
    options = arguments()
    device = start()
    shards = dist.get_world_size() // options.replicate
    mesh = init_device_mesh(
        device.type, (options.replicate, shards), mesh_dim_names=("dp_replicate", "dp_shard")
    )
    train_uri = options.train or made_up_pictures(256)

    # feedstock: the samples, their order and their ops; the same on every rank.
    crop = fs.decode_image(), fs.random_resized_crop(options.size)
    train = fs.Dataset(train_uri).map("image", *crop).shuffle(seed=7).batch(options.batch_size)
    centre = fs.decode_image(), fs.resize(options.size * 8 // 7), fs.center_crop(options.size)
    # Evaluation also needs the last, incomplete batch; its padding is marked in batch["valid"].
    val = fs.Dataset(options.val or train_uri).map("image", *centre).batch(options.batch_size, tail="pad")

    # feedstock: this rank's share. Rank and world size come from the mesh. Replicas and shards both split the data;
    # tensor- or context-parallel dimensions, if there were any, would not.
    # On a GPU, page-locked batches are copied and finished while the model computes.
    train_loader = torch_loader(train, mesh, device=device, finish=finished(flip=0.5))
    val_loader = torch_loader(val, mesh, device=device, finish=finished(), restart=True)

    torch.manual_seed(0)
    model = sharded(torchvision.models.resnet50() if options.real else tiny_resnet(), device, mesh)
    peak = 0.1 * (train_loader.global_batch_size or 0) / 256  # Goyal et al. 2017
    optimizer = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.9, weight_decay=1e-4)

    # feedstock: the loader is Stateful, and is saved with the model
    state = {"weights": Weights(model, optimizer), "loader": train_loader}
    if options.checkpoints and (last := last_whole(options.checkpoints)):
        dcp.load(state, checkpoint_id=last)
        say(f"resuming at epoch {train_loader.epoch}, sample {train_loader.position}")

    def save() -> None:
        if options.checkpoints:
            place = f"{train_loader.epoch:03}-{train_loader.position:012}"
            dcp.save(state, checkpoint_id=options.checkpoints / place)

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


class Weights:
    """The model and its optimizer as one Stateful. Each rank saves its shards; any other sharding can load
    them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)


def last_whole(folder: Path) -> Path | None:
    """Returns the latest complete checkpoint: DCP writes its metadata last."""
    return max((metadata.parent for metadata in folder.glob("*/.metadata")), default=None)


def sharded(model: nn.Module, device: torch.device, mesh: DeviceMesh) -> nn.Module:
    """Shards each stage as a separate unit, so that only one stage's parameters are gathered at a time."""
    model.to(device)
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        fully_shard(stage, mesh=mesh)
    return fully_shard(model, mesh=mesh)


if __name__ == "__main__":
    main()
