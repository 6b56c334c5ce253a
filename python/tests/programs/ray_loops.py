"""Training functions that the tests of Ray Train run in its workers. They are pickled by value: workers do not import
this module.

Each counts, in its model, how often each sample id entered a step (``seen``). The count is part of the checkpoint. When
a worker dies, training since the checkpoint is lost together with its counts. After the run, every count must be the
number of epochs.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from feedstock.ray import PreemptionNotice

PATIENCE_S = 900  # enough for an overloaded machine; a worker that waits longer fails its test


class Model(nn.Module):
    """A linear classifier of 16×16 images, with the count of samples."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, 8), nn.ReLU(), nn.Linear(8, 1000))
        self.register_buffer("seen", torch.zeros(samples, dtype=torch.int64))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        images = batch["image"].float() / 255 - 0.5
        return nn.functional.cross_entropy(self.net(images), batch["label"])


def count(seen: torch.Tensor, batch: dict[str, Any]) -> None:
    """Adds all ranks' samples of this step, so that ``seen`` is the same on all."""
    step = torch.zeros_like(seen)
    step.index_add_(0, batch["sample_ids"], torch.ones_like(batch["sample_ids"]))
    if dist.is_initialized():
        dist.all_reduce(step)
    seen += step


class Journal:
    """This worker's steps, one per line, in a separate file that outlives the worker."""

    def __init__(self, folder: str, loader: Any, resumed: dict[str, Any] | None) -> None:
        self.rank = ray.train.get_context().get_world_rank()
        self.path = Path(folder, f"{time.time_ns()}-{self.rank}.jsonl")
        self.write(
            start=time.time_ns(),
            rank=self.rank,
            world_size=ray.train.get_context().get_world_size(),
            pid=os.getpid(),
            node=ray.get_runtime_context().get_node_id(),
            loader=[loader.rank, loader.world_size],
            resumed=resumed,
        )

    def step(self, step: int, batch: dict[str, Any]) -> None:
        self.write(step=step, ids=batch["sample_ids"].tolist())

    def write(self, **line: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def pace(folder: str, step: int) -> None:
    """Waits until the test allows this global step: the number in ``limit``, if there is such a file."""
    limit, start = Path(folder, "limit"), time.monotonic()
    while limit.exists() and step >= int(limit.read_text() or 0):
        if time.monotonic() - start > PATIENCE_S:
            raise TimeoutError(f"step {step} was not allowed within {PATIENCE_S} s")
        time.sleep(0.05)


def die() -> None:
    """Ends the process like the kernel's out-of-memory killer: without handlers and clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def ddp(config: dict[str, Any]) -> dict[str, Any]:
    """Trains with DDP. Rank 0 writes weights, optimizer and the loader's position every ``every`` steps, and before a
    node leaves. In step ``notice_at``, ranks wait until a notice comes."""
    torch.manual_seed(0)
    folder, loader = config["folder"], ray.train.get_dataset_shard("train")
    assert loader is ray.train.get_dataset_shard("train")  # a second call must not start again
    model = ray.train.torch.prepare_model(Model(config["samples"]))
    plain = getattr(model, "module", model)  # one worker alone needs no DDP
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step, resumed = 0, None
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as path:
            saved = torch.load(Path(path, "state.pt"), weights_only=True)
        plain.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step, resumed = saved["step"], saved["loader"]
    journal = Journal(folder, loader, resumed)
    notice = PreemptionNotice(every=1)
    while loader.epoch < config["epochs"]:
        for batch in loader:
            journal.step(step, batch)
            pace(folder, step)
            leaves = config.get("notice_at") == step and resumed is None
            while leaves and not notice.due():
                time.sleep(0.05)
            if config.get("kill") == [journal.rank, step] and resumed is None:
                die()
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count(plain.seen, batch)
            step += 1
            if leaves or step % config["every"] == 0:
                state = {
                    "model": plain.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                    "step": step,
                }
                report(state if journal.rank == 0 else None, step)
    return {"seen": plain.seen.tolist(), "weights": weights(plain)}


def weights(model: nn.Module) -> list[float]:
    return [parameter.double().sum().item() for parameter in model.parameters()]


def report(state: dict[str, Any] | None, step: int) -> None:
    with tempfile.TemporaryDirectory() as path:
        checkpoint = None
        if state is not None:
            torch.save(state, Path(path, "state.pt"))
            checkpoint = ray.train.Checkpoint.from_directory(path)
        ray.train.report({"step": step}, checkpoint=checkpoint)


def fsdp2(config: dict[str, Any]) -> dict[str, Any]:
    """Trains with FSDP2. Every rank writes its part, with the loader's position, by torch.distributed.checkpoint."""
    torch.manual_seed(0)
    context, loader = ray.train.get_context(), ray.train.get_dataset_shard("train")
    model = Model(config["samples"])
    mesh = init_device_mesh("cpu", (context.get_world_size(),))
    fully_shard(model.net, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    progress, resumed = Progress(), None
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as path:
            weights_, moments = get_state_dict(model, optimizer)
            state = {"model": weights_, "optimizer": moments, "loader": loader, "progress": progress}
            dcp.load(state, checkpoint_id=path)  # moves the loader: it is Stateful
            set_state_dict(model, optimizer, model_state_dict=weights_, optim_state_dict=moments)
        resumed = loader.state_dict()
    journal = Journal(config["folder"], loader, resumed)

    def upload(checkpoint: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
        storage = context.get_storage()
        if config.get("kill_upload") == [journal.rank, progress.step] and resumed is None:
            # The previous checkpoint is registered. Of this one, the other rank has written its part, so its folder
            # exists. This rank's part and the registration never come.
            wait_for(Path(storage.experiment_fs_path, "checkpoint_manager_snapshot.json"))
            wait_for(Path(storage.experiment_fs_path, name, ".metadata"))
            die()
        return storage.persist_current_checkpoint(checkpoint, name)

    while loader.epoch < config["epochs"]:
        for batch in loader:
            journal.step(progress.step, batch)
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count(model.seen, batch)
            progress.step += 1
            if progress.step % config["every"] == 0:
                weights_, moments = get_state_dict(model, optimizer)
                state = {"model": weights_, "optimizer": moments, "loader": loader, "progress": progress}
                with tempfile.TemporaryDirectory() as path:
                    dcp.save(state, checkpoint_id=path)
                    ray.train.report(
                        {"step": progress.step},
                        checkpoint=ray.train.Checkpoint.from_directory(path),
                        checkpoint_upload_fn=upload,
                    )
    full = [parameter.full_tensor().double().sum().item() for parameter in model.parameters()]
    return {"seen": model.seen.tolist(), "weights": full}


class Progress:
    """The global step, in a form for torch.distributed.checkpoint."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def wait_for(path: Path) -> None:
    start = time.monotonic()
    while not path.exists():
        if time.monotonic() - start > PATIENCE_S:
            raise TimeoutError(f"{path} did not appear within {PATIENCE_S} s")
        time.sleep(0.05)


def beside_ray_data(config: dict[str, Any]) -> dict[str, list[int]]:
    """Reads one epoch of both kinds of data sets, and returns all ranks' samples and rows."""
    found = {"train": [], "rows": []}
    for batch in ray.train.get_dataset_shard("train").iter_torch_batches():
        found["train"] += batch["sample_ids"].tolist()
    for batch in ray.train.get_dataset_shard("rows").iter_torch_batches(batch_size=4):
        found["rows"] += batch["id"].tolist()
    everybody: list[Any] = [None] * ray.train.get_context().get_world_size()
    dist.all_gather_object(everybody, found)
    return {name: [row for one in everybody for row in one[name]] for name in found}
