"""Trains an image classifier under torchrun, with the workers of train.sbatch: a program to copy.

A checkpoint has the model, the optimizer and the loader's cursor. It is saved every --save-every steps, after each
epoch, and when a rank gets SIGTERM. Ranks agree on the step at which they stop, so a job that is requeued uses each
sample of an epoch exactly once. Comments mark the lines that use feedstock.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import feedstock as fs
from feedstock.torch import loader as torch_loader


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="URI of images with the columns image and label")
    parser.add_argument("--checkpoint", required=True, type=Path, help="file to save to, and to resume from")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224, help="pixels")
    parser.add_argument("--save-every", type=int, default=500, help="steps")
    return parser.parse_args()


def workers() -> fs.Workers | None:
    """feedstock: the workers that train.sbatch has started; without it, this process decodes."""
    if "FEEDSTOCK_WORKERS" not in os.environ:
        return None
    run = Path(os.environ["FEEDSTOCK_RUN"])
    return fs.Workers(
        os.environ["FEEDSTOCK_WORKERS"],
        token=(run / "token").read_text(),
        ca=run / "ca.crt",
        certificate=run / "rank.crt",
        key=run / "rank.key",
        server_name="feedstock-workers",
        local="fallback",  # at a SIGTERM, workers leave together with the trainers
    )


def model_of(classes: int = 1000) -> nn.Module:
    """Returns the model; replace it with yours."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 7, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes),
    )  # fmt: skip


class Stop:
    """Whether a rank has received SIGTERM. Slurm sends it to all processes of a job, torchrun to its own."""

    def __init__(self, device: torch.device) -> None:
        self._here = False
        self._device = device
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, *_: object) -> None:
        self._here = True

    def agreed(self) -> bool:
        """Returns whether any rank is to stop: the same answer in all ranks. Each calls it once a step."""
        flag = torch.tensor([int(self._here)], device=self._device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())


def train(options: argparse.Namespace, on_step: Callable[[int, dict[str, Any]], None] | None = None) -> bool:
    """Trains until the epochs are complete, or a rank gets SIGTERM: then it returns False.

    Calls `on_step(epoch, batch)` before each step.
    """
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    stop = Stop(device)

    # feedstock: samples, order and ops; this rank's batches come from the workers.
    ops = fs.decode_image(), fs.random_resized_crop(options.size), fs.horizontal_flip()
    images = fs.Dataset(options.data).map("image", *ops).shuffle(seed=7)
    loader = torch_loader(
        images.batch(global_batch_size=options.global_batch_size),
        device=device if device.type == "cuda" else None,
        workers=workers(),
    )

    torch.manual_seed(0)
    model = DistributedDataParallel(model_of().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # feedstock: any rank's state fits all ranks, in any number
        say(f"resuming at epoch {loader.epoch}, sample {loader.position}")

    def save() -> None:
        if dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            new = options.checkpoint.with_suffix(".new")
            torch.save({**state, "loader": loader.state_dict()}, new)
            new.replace(options.checkpoint)  # a process that is killed leaves the earlier one

    steps = 0
    while (epoch := loader.epoch) < options.epochs:
        for batch in loader:
            if on_step is not None:
                on_step(epoch, batch)
            images_of_batch = batch["image"].permute(0, 3, 1, 2).float() / 255
            loss = nn.functional.cross_entropy(model(images_of_batch), batch["label"].long())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if stop.agreed():
                save()
                say(f"SIGTERM: saved at epoch {loader.epoch}, sample {loader.position}")
                leave()
                return False
            if steps % options.save_every == 0:
                save()
        save()
        say(f"epoch {epoch} is complete; loss {loss.item():.3f}")
    leave()
    return True


def leave() -> None:
    """Leaves the group when all ranks have called it, so that none is killed while rank 0 saves."""
    dist.barrier()
    dist.destroy_process_group()


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    train(arguments())
