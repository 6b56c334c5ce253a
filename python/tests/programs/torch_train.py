"""A training job for tests: a small model under DDP, FSDP2 or tensor parallelism, with checkpoints by
`torch.distributed.checkpoint`. It records every sample that entered a step, and can kill one of its ranks.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import feedstock as fs
from feedstock.torch import loader as torch_loader

from .torch_records import Records, note_start


@dataclass(frozen=True)
class Job:
    data: str
    """URI of the data set."""
    folder: str
    """The folder of records and checkpoints."""
    parallel: Literal["ddp", "fsdp2", "fsdp2+tp"] = "ddp"
    batch: dict[str, Any] = field(default_factory=lambda: {"batch_size": 10})
    """Arguments of `Pipeline.batch`."""
    seed: int = 7
    epochs: int = 1
    attempt: int = 0
    """The number of earlier starts of this job, without torchrun's restarts."""
    save_every: int = 0
    """Steps between checkpoints; 0 for none."""
    kill: tuple[int, int, int] | None = None
    """(attempt, rank, step): that rank kills itself after this number of steps, between a step's records and its
    collectives."""
    skip_fraction: float | None = None
    """`on_error("skip", max_fraction=...)`; by default errors are raised."""
    filter: str | None = None


def pipeline(job: Job) -> fs.Pipeline:
    dataset = fs.Dataset(job.data)
    if job.filter:
        dataset = dataset.filter(job.filter)
    ops = fs.decode_image(), fs.random_resized_crop(32), fs.horizontal_flip()
    loading = dataset.map("image", *ops).shuffle(seed=job.seed).batch(**job.batch).options(threads=1)
    if job.skip_fraction is not None:
        loading = loading.on_error("skip", max_fraction=job.skip_fraction)
    return loading


class Model(nn.Module):
    """A small model with layers that tensor parallelism can split. Its names are fixed, so that a checkpoint fits any
    layout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, stride=4)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        features = self.stem(pictures.permute(0, 3, 1, 2).float() / 255.0).relu().mean(dim=(2, 3))
        out: torch.Tensor = self.down(self.up(features).relu())
        return out


def parallelized(job: Job) -> tuple[nn.Module, DeviceMesh | None]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model: nn.Module = Model()
    if job.parallel == "ddp":
        return nn.parallel.DistributedDataParallel(model), None
    if job.parallel == "fsdp2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
        return fully_shard(model, mesh=mesh), mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["dp"]), mesh


class Weights:
    """The model and its optimizer as one `Stateful`, with their current sharding."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def train(job: Job) -> None:
    rank = dist.get_rank()
    attempt = job.attempt + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    folder, latest = Path(job.folder), Path(job.folder) / "latest"
    model, mesh = parallelized(job)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    weights = Weights(model, optimizer)
    with torch_loader(pipeline(job), mesh) as loader:
        if latest.exists():
            dcp.load({"weights": weights, "loader": loader}, checkpoint_id=folder / latest.read_text())
        if rank == 0:
            note_start(folder, attempt, loader.state_dict())
        records = Records(folder / "records", attempt, rank)
        steps = 0
        while loader.state_dict()["epoch"] < job.epochs:
            before = loader.state_dict()
            for batch in loader:
                records.write(before["epoch"], before["position"], batch)
                if job.kill == (attempt, rank, steps):
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = nn.functional.cross_entropy(
                    model(batch["image"]), batch["label"] % 10, reduction="none"
                )
                (loss * batch["valid"]).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
                before = loader.state_dict()
                if job.save_every and steps % job.save_every == 0:
                    name = f"checkpoint-{before['epoch']}-{before['position']}"
                    dcp.save({"weights": weights, "loader": loader}, checkpoint_id=folder / name)
                    if rank == 0:  # the checkpoint is complete: now it counts
                        (folder / "latest.new").write_text(name)
                        (folder / "latest.new").rename(latest)
                    dist.barrier()  # no rank is killed between writing a checkpoint and making it the latest
        ledger = loader.ledger()
        assert ledger["exact"], ledger
    losses = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, torch.tensor([float(sum(p.detach().float().sum() for p in whole(model)))]))
    assert len({value.item() for value in losses}) == 1, f"the ranks' models differ: {losses}"
    if rank == 0:
        (folder / f"done{attempt}").write_text(json.dumps(steps))


def save_while_loading(job: Job) -> None:
    """An asynchronous checkpoint has the state at its call, although batches are taken while it is written."""
    with torch_loader(pipeline(job)) as loader, torch_loader(pipeline(job)) as other:
        batches = iter(loader)
        first = next(batches)["sample_ids"].tolist()
        saving = dcp.async_save({"loader": loader}, checkpoint_id=Path(job.folder) / "asynchronous")
        second, _ = next(batches)["sample_ids"].tolist(), next(batches)
        saving.result()  # type: ignore[union-attr]
        dcp.load({"loader": other}, checkpoint_id=Path(job.folder) / "asynchronous")
        assert next(iter(other))["sample_ids"].tolist() == second != first


def whole(model: nn.Module) -> list[torch.Tensor]:
    """Returns the parameters, gathered from their shards."""
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]


def under_torchrun(job: Job) -> None:
    """Runs one rank as torchrun starts it, with its rank in the environment."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(job)
    dist.barrier()  # see torch_ranks
    dist.destroy_process_group()
