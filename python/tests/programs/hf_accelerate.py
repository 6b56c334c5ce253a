"""A training loop of Accelerate for tests, for any number of ranks. It can kill itself in mid-epoch."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

import feedstock as fs
from feedstock.huggingface import loader as huggingface_loader


@dataclass(frozen=True)
class Job:
    data: str
    folder: str
    name: str
    """The name of its result file, `<name>.json`."""
    kill_at: int | None = None
    """Kills the last rank before this step."""
    resume: bool = False
    epochs: int = 2


class Model(nn.Module):
    """Counts samples in its state. At the end, the count shows which samples the weights were trained on."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.net = nn.Linear(16 * 16 * 3, 1000)
        self.register_buffer("seen", torch.zeros(samples, dtype=torch.int64))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        step = torch.zeros_like(self.seen)
        step.index_add_(0, batch["sample_ids"], torch.ones_like(batch["sample_ids"]))
        dist.all_reduce(step)
        self.seen += step
        return nn.functional.cross_entropy(self.net(batch["image"].flatten(1).float() / 255), batch["label"])


def train(job: Job) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # required, although the group exists
    os.environ.setdefault("MASTER_PORT", "29500")
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    pictures = fs.Dataset(job.data).map("image", fs.decode_image(), fs.random_resized_crop(16))
    pipeline = pictures.shuffle(seed=5, window=64).batch(global_batch_size=20).options(threads=1)
    batches = huggingface_loader(accelerator, pipeline)
    model = Model(len(pipeline.dataset))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    prepared = accelerator.prepare(model, optimizer, batches)
    assert prepared[2] is batches, "prepare() touched the loader"
    model, optimizer, _ = prepared
    step = 0
    checkpoint = Path(job.folder, "checkpoint")
    if job.resume:
        accelerator.load_state(str(checkpoint))
        step = len(batches) * batches.epoch + len(batches) - batches.steps_left
    ranks = accelerator.num_processes
    while batches.epoch < job.epochs:
        for batch in batches:
            if step == job.kill_at and accelerator.process_index == ranks - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 6 == 0:
                accelerator.save_state(str(checkpoint))
    whole = accelerator.unwrap_model(model)
    if accelerator.is_main_process:
        done = {
            "seen": whole.seen.tolist(),
            "weights": [parameter.double().sum().item() for parameter in whole.parameters()],
            "steps": step,
            "ranks": [batches.world_size, ranks],
        }
        Path(job.folder, f"{job.name}.json").write_text(json.dumps(done))


def mesh_coordinates(folder: str, shape: Sequence[int], names: Sequence[str]) -> None:
    """Writes each process's data-parallel coordinates under an accelerator with this mesh."""
    from types import SimpleNamespace

    from torch.distributed.device_mesh import init_device_mesh

    from feedstock.huggingface.accelerate import coordinates

    mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=tuple(names))
    accelerator: Any = SimpleNamespace(torch_device_mesh=mesh, process_index=-1, num_processes=-1)
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(coordinates(accelerator)))
