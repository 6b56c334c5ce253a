"""A training job for tests, whose batch size follows the goodput: a small model under DDP, checkpoints by rank 0,
records of every sample that entered a step. It can kill one of its ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

import feedstock as fs
from feedstock.adaptive import AdaptiveLoader

from .torch_records import Records


@dataclass(frozen=True)
class Job:
    data: str
    """URI of the data set."""
    folder: str
    """The folder of records and checkpoints."""
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    batch_size: int = 8
    """Rows per step over all ranks, at the start."""
    max_batch_size: int = 64
    bounds: tuple[int, int] = (1, 32)
    """Rows per micro-batch on one rank."""
    accumulation: bool = False
    epochs: int = 2
    interval: int = 5
    """Optimizer steps between decisions."""
    attempt: int = 0
    """The number of earlier starts of this job."""
    save_every: int = 0
    """Optimizer steps between checkpoints; 0 for none."""
    kill: tuple[int, int] | None = None
    """(rank, batch): that rank kills itself after recording its batch of this number."""
    quiet_clock: bool = True
    """Whether step times come from a formula instead of a busy machine's clock, so that decisions are predictable."""


class FormulaClock:
    """Each optimizer step takes 0.1 s plus 0.1 ms per row, so large batches pay off."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def step(self, rows: int) -> None:
        self.now += 0.1 + 1e-4 * rows


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 4, stride=4)
        self.head = nn.Linear(4, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        features = self.stem(pictures.permute(0, 3, 1, 2).float() / 255.0).relu().mean(dim=(2, 3))
        out: torch.Tensor = self.head(features)
        return out


def pipeline(job: Job) -> fs.Pipeline:
    loading = fs.Dataset(job.data).map("image", fs.decode_image(), fs.random_resized_crop(16)).shuffle(seed=7)
    return loading.batch(global_batch_size=job.batch_size, tail="pad").options(threads=1)


def parallelized(job: Job) -> nn.Module:
    if job.parallel == "ddp":
        return nn.parallel.DistributedDataParallel(Model())
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model: nn.Module = fully_shard(Model(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def train(job: Job) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    folder = Path(job.folder)
    torch.manual_seed(0)
    model = parallelized(job)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    clock = FormulaClock()
    ticking: Callable[[], float] = clock if job.quiet_clock else time.perf_counter
    inner = pipeline(job).loader(rank, world_size, output="torch")
    with AdaptiveLoader(inner, interval=job.interval, clock=ticking) as loader:
        loader.watch(model)
        checkpoint = folder / "checkpoint.pt"
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            loader.load_state_dict(state["loader"])
        loader.autoscale_batch_size(job.max_batch_size, job.bounds, job.accumulation)
        if rank == 0:
            (folder / f"start{job.attempt}").write_text(json.dumps([loader.epoch, loader.position]))
        metrics = loader.accumulator("train")
        records = Records(folder / "records", job.attempt, rank)
        batches, steps, sizes = 0, 0, []
        for epoch in loader.remaining_epochs_until(job.epochs):
            position = loader.position
            for batch in loader:
                records.write(epoch, position, batch)
                position = loader.position
                if job.kill == (rank, batches):
                    os.kill(os.getpid(), signal.SIGKILL)
                batches += 1
                loss = nn.functional.cross_entropy(
                    model(batch["image"]), batch["label"] % 10, reduction="none"
                )
                skip_reduce = contextlib.nullcontext() if loader.is_optimizer_step else model.no_sync()
                with skip_reduce:
                    ((loss * batch["valid"]).mean() / loader.accumulation_steps).backward()
                ids = batch["sample_ids"][batch["valid"]]
                metrics.add(rows=len(ids), ids=ids.sum(), loss=(loss * batch["valid"]).sum())
                if not loader.is_optimizer_step:
                    continue
                loader.observe()
                with loader.scaled_lr(optimizer):
                    optimizer.step()
                optimizer.zero_grad()
                clock.step(loader.global_batch_size)
                steps += 1
                sizes.append((loader.batch_size, loader.accumulation_steps))
                if job.save_every and steps % job.save_every == 0:
                    save(folder, rank, loader, model, optimizer)
            if rank == 0:  # what comes after an epoch's batches
                with (folder / "ended").open("a") as ended:
                    ended.write(f"{job.attempt} {epoch}\n")
        result = {"totals": metrics.totals(), "sizes": sizes, "progress": loader.progress}
    (folder / f"done{job.attempt}-{rank}").write_text(json.dumps(result))


def save(
    folder: Path, rank: int, loader: AdaptiveLoader, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    loader.sync()
    if rank == 0:
        state: dict[str, Any] = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),
        }
        torch.save(state, folder / "checkpoint.new")
        (folder / "checkpoint.new").rename(folder / "checkpoint.pt")
    dist.barrier()  # no rank is killed between writing a checkpoint and making it the latest
