"""Shared code of the two ImageNet examples: options, ResNet training steps on a batch, and sample data.

Nothing here is about distributing data; that is in `imagenet_ddp.py` and `imagenet_fsdp2.py`.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torchvision
from torch import nn

import feedstock as fs


def parser(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the options of both examples."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", action="store_true", help="train ResNet-50 at 224 px for 90 epochs")
    parser.add_argument("--train", help="URI of the training data (default: sample data)")
    parser.add_argument("--val", help="URI of the validation data (default: the training data)")
    parser.add_argument("--batch-size", type=int, help="rows per rank (default 16; with --real 256)")
    parser.add_argument("--epochs", type=int, help="default 2; with --real 90")
    parser.add_argument("--save-every", type=int, default=500, help="steps between checkpoints")
    return parser


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Returns the given options, with defaults that depend on --real."""
    options = parser.parse_args()
    if options.real and not options.train:
        parser.error("--real needs --train with the URI of the training data")
    options.size = 224 if options.real else 64
    options.batch_size = options.batch_size or (256 if options.real else 16)
    options.epochs = options.epochs or (90 if options.real else 2)
    return options


def finished(flip: float = 0.0) -> dict[str, fs.Finish]:
    """Returns the loader's work on the device: from u8 [rows, height, width, 3] to normalised f32 [rows, 3,
    height, width], channels last. Bytes are copied to the device, a quarter of the size of floats."""
    return {"image": fs.finish_pictures("float32", layout="channels_last", flip=flip)}


@torch.inference_mode()
def evaluate(model: nn.Module, loader: fs.Loader, device: torch.device) -> tuple[int, int]:
    """Returns the number of correctly classified samples and the number of all samples. Each is counted once
    over all ranks."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for batch in loader:
        valid = batch["valid"]
        right = model(batch["image"]).argmax(dim=1) == batch["label"]
        counts += torch.stack([(right & valid).sum(), valid.sum()])
    dist.all_reduce(counts)
    right, seen = counts.tolist()
    return right, seen


def learning_rate(peak: float, progress: float, warm_up: float = 5 / 90) -> float:
    """Returns the rate for a share of the training: a linear warm-up, then half a cosine. Batch size and
    world size may change between steps."""
    if progress < warm_up:
        return peak * (progress / warm_up + 1e-3)
    return peak * 0.5 * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up)))


def tiny_resnet() -> nn.Module:
    return torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1])


def start() -> torch.device:
    """Joins the ranks that torchrun started; without torchrun, a group of one."""
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "0",
    }.items():
        os.environ.setdefault(name, value)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        return device
    dist.init_process_group("gloo")
    return torch.device("cpu")


def end() -> None:
    """Leaves the group when all ranks have called it."""
    # Gloo frees the last collective's tensors on a separate thread, which waits for the interpreter's lock.
    # Destroying the group waits for that thread while holding the lock. A barrier releases the lock while it waits, and
    # the pause while the barrier's own tensors are freed.
    dist.barrier()
    time.sleep(0.5)
    dist.destroy_process_group()


def made_up_pictures(samples: int) -> str:
    """Makes sample data with feedstock's command, on one rank, and keeps it for the next run."""
    folder = Path(tempfile.gettempdir()) / f"feedstock-imagenet-{samples}"
    if dist.get_rank() == 0 and not folder.exists():
        new = folder.with_suffix(f".{os.getpid()}")
        command = [
            sys.executable,
            "-m",
            "feedstock",
            "synth",
            "imagenet",
            str(new),
            "--samples",
            str(samples),
        ]
        subprocess.run([*command, "--layout", "parquet"], check=True)
        new.rename(folder)
    dist.barrier()
    return str(folder)


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)
