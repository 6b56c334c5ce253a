"""Ranks that measure the noise scale of known gradients, for tests of `GradientMeter`.

The loss is linear in the parameters: its gradient is the mean of the rows, for any parameters. So the rows' mean and
covariance are the gradient's.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from feedstock.adaptive.exchange import TorchExchange
from feedstock.adaptive.meter import GradientMeter, combine

WIDTH = 24
ROWS = 4


class Linear(nn.Module):
    """Two parameters, so that a whole model is not one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH // 2, 1, bias=False)
        self.b = nn.Linear(WIDTH // 2, 1, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        half = WIDTH // 2
        out: torch.Tensor = self.a(rows[:, :half]) + self.b(rows[:, half:])
        return out


def truth() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the mean and standard deviation of the rows."""
    return torch.linspace(-1.0, 1.0, WIDTH), torch.linspace(0.5, 1.5, WIDTH)


def rows(generator: torch.Generator, count: int = ROWS) -> torch.Tensor:
    mean, spread = truth()
    return mean + torch.randn(count, WIDTH, generator=generator) * spread


def under_ddp(folder: str, steps: int, accumulation_steps: int) -> None:
    """Rank 0 writes the measurements of all ranks, and the values that the ranks' gradients have by definition."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    model = nn.parallel.DistributedDataParallel(Linear())
    meter = GradientMeter(model.parameters(), world_size)
    parts = world_size * accumulation_steps
    sqr = var = 0.0
    for _ in range(steps):
        model.zero_grad()
        own = []
        for part in range(accumulation_steps):
            batch = rows(generator)
            own.append(batch.double().mean(dim=0))
            model.require_backward_grad_sync = part == accumulation_steps - 1
            (model(batch).mean() / accumulation_steps).backward()
        meter.observe(ROWS, accumulation_steps)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)  # comes after, and must change nothing
        everyone = [torch.zeros(accumulation_steps, WIDTH, dtype=torch.float64) for _ in range(world_size)]
        dist.all_gather(everyone, torch.stack(own))
        gradients = torch.cat(everyone)
        part_sqr = float(gradients.square().sum(dim=1).mean())
        mean_sqr = float(gradients.mean(dim=0).square().sum())
        sqr += (parts * mean_sqr - part_sqr) / (parts - 1) / steps
        var += (part_sqr - mean_sqr) * ROWS * parts / (parts - 1) / steps
    measured = combine(TorchExchange().all_gather(meter.take()))
    if rank == 0:
        Path(folder, "ddp.json").write_text(json.dumps({"measured": measured, "expected": [sqr, var]}))


def under_fsdp(folder: str, steps: int) -> None:
    """Rank 0 writes the ranks' measurements of sharded gradients, and one process's measurements of whole ones."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, world_size = dist.get_rank(), dist.get_world_size()
    generators = [torch.Generator().manual_seed(one) for one in range(world_size)]
    model = fully_shard(Linear(), mesh=init_device_mesh("cpu", (world_size,)))
    whole = Linear()
    meter, reference = GradientMeter(model.parameters(), world_size), GradientMeter(whole.parameters(), 1)
    for _ in range(steps):
        batches = [rows(generator) for generator in generators]
        model.zero_grad()
        model(batches[rank]).mean().backward()
        meter.observe(ROWS, 1)
        whole.zero_grad()
        whole(torch.cat(batches)).mean().backward()
        reference.observe(ROWS * world_size, 1)
    measured = combine(TorchExchange().all_gather(meter.take()))
    if rank == 0:
        expected = combine([reference.take()])
        Path(folder, "fsdp.json").write_text(json.dumps({"measured": measured, "expected": expected}))
