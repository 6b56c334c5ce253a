"""Shared code of the two examples for Ray Train: the options of a job, its fleet, and what a run stores.

A run is a folder in ``--runs``, with the name ``--name``, on S3 or on a file system that all nodes see:

    steps.csv, …        one row for each training step, or for each evaluation
    checkpoint_…        the best and the last checkpoint: weights, optimizer, the loader's position
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray.train
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ray.train.torch import TorchTrainer
from torch import nn
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import feedstock as fs
from feedstock.ray import WORKER_RESOURCE, DataConfig, Fleet, PreemptionNotice


class Run:
    """A rank's state: the model, the optimizer, the loader's position, the step, and the tables of metrics.

    It continues from the last checkpoint that Ray has registered, if there is one."""

    def __init__(
        self, config: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any
    ) -> None:
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.step, self.save_every, self.notice = 0, config["save_every"], PreemptionNotice()
        self.started, self.seconds_before = config["started"], 0.0
        self.tables: dict[str, list[dict[str, Any]]] = {}
        storage = ray.train.get_context().get_storage()
        self.storage, self.folder = storage.storage_filesystem, storage.experiment_fs_path
        if (checkpoint := ray.train.get_checkpoint()) is not None:
            with checkpoint.as_directory() as folder:
                dcp.load({"run": self}, checkpoint_id=folder)
        self.first_step = self.step

    @property
    def seconds(self) -> float:
        """The time since the job was submitted, with the time of earlier jobs up to their last checkpoints."""
        return self.seconds_before + time.time() - self.started

    def log(self, table: str, **metrics: Any) -> None:
        """Adds a row to a table. Tensors may still be in computation on a GPU; `save` waits for them."""
        if table not in self.tables:
            self.tables[table] = self.rows_before(table)
        self.tables[table].append({"step": self.step, "seconds": round(self.seconds, 3), **metrics})

    def rows_before(self, table: str) -> list[dict[str, Any]]:
        """Returns the stored rows up to the checkpoint. Later ones are of steps that are lost, and repeated."""
        path = f"{self.folder}/{table}.csv"
        if self.first_step == 0 or self.storage.get_file_info(path).type == pyarrow.fs.FileType.NotFound:
            return []
        with self.storage.open_input_stream(path) as file:
            rows = csv.DictReader(io.StringIO(file.read().decode()))
            return [row for row in rows if int(row["step"]) <= self.first_step]

    def due(self) -> bool:
        """Returns whether to save now: every ``save_every`` steps, and when Ray announces that a rank's node leaves."""
        return self.notice.due() or self.step % self.save_every == 0

    def save(self, **metrics: float) -> None:
        """Writes the tables, and a checkpoint; with FSDP2, each rank writes its part. All ranks must call it."""
        for table, rows in self.tables.items():
            rows[:] = [{name: number(value) for name, value in row.items()} for row in rows]
            text = io.StringIO()
            writer = csv.DictWriter(text, rows[-1])
            writer.writeheader()
            writer.writerows(rows)
            self.write(f"{table}.csv", text.getvalue().encode())
        # Of copies, rank 0's is saved: DDP broadcasts its statistics of batch norms.
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        with tempfile.TemporaryDirectory() as folder:
            dcp.save({"run": self}, checkpoint_id=folder, planner=planner)
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": self.step, **metrics}, checkpoint=checkpoint)

    def write(self, name: str, content: bytes) -> None:
        """Writes a file of the run's folder, on rank 0. Readers find the former one until it is complete."""
        if ray.train.get_context().get_world_rank() == 0:
            path = f"{self.folder}/{name}"
            with self.storage.open_output_stream(path + ".new") as file:
                file.write(content)
            self.storage.move(path + ".new", path)

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        loader = self.loader.state_dict()
        clock = {"started": self.started, "seconds_before": self.seconds_before, "seconds": self.seconds}
        return {"model": model, "optimizer": optimizer, "loader": loader, "step": self.step, **clock}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        self.loader.load_state_dict(state["loader"])
        self.step = state["step"]
        same_job = state["started"] == self.started
        self.seconds_before = state["seconds_before" if same_job else "seconds"]


def number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def summed(value: torch.Tensor) -> torch.Tensor:
    """Returns the sum over all ranks."""
    value = value.detach().clone()
    dist.all_reduce(value)
    return value


def fit(
    train: Callable[[dict[str, Any]], None],
    options: argparse.Namespace,
    datasets: dict[str, fs.Pipeline],
    best: tuple[str, str],
    **loader_options: Any,
) -> ray.train.Result:
    """Trains, and continues the run if its name was used before. ``best`` is a metric, and ``"min"`` or ``"max"``."""
    trainer = TorchTrainer(
        train,
        train_loop_config={**vars(options), "started": time.time()},
        scaling_config=ray.train.ScalingConfig(num_workers=options.trainers, use_gpu=options.gpu),
        run_config=ray.train.RunConfig(
            name=options.name,
            storage_path=options.runs,
            failure_config=ray.train.FailureConfig(max_failures=options.max_failures),
            checkpoint_config=ray.train.CheckpointConfig(
                num_to_keep=1,  # the best, and always the last
                checkpoint_score_attribute=best[0],
                checkpoint_score_order=best[1],
            ),
        ),
        datasets=datasets,
        dataset_config=DataConfig(restart=["evaluation"], workers=options.workers, **loader_options),
    )
    with fleet(datasets["train"], options):
        return trainer.fit()


@contextlib.contextmanager
def fleet(data: fs.Pipeline, options: argparse.Namespace) -> Iterator[None]:
    """Starts workers that decode on the cluster's nodes, if ``--workers ray`` requests them."""
    if options.workers != "ray":
        yield
        return
    with Fleet(
        data,
        max_workers=options.max_workers,
        cpus_per_worker=options.cpus_per_worker,
        resources={WORKER_RESOURCE: 1} if options.ingest_nodes else None,
    ) as workers:
        yield
        samples = sum(worker["samples"] for worker in workers.status()["workers"])
        print(f"the fleet's workers made {samples} samples")


def sample_data(kind: str, layout: str, samples: int) -> str:
    """Makes sample data with feedstock's command, and keeps it for the next run on this machine."""
    folder = Path(tempfile.gettempdir()) / f"feedstock-{kind}-{samples}"
    if not folder.exists():
        new = folder.with_suffix(f".{os.getpid()}")
        synth = [sys.executable, "-m", "feedstock", "synth", kind, str(new), "--layout", layout]
        subprocess.run([*synth, "--samples", str(samples), "--quiet"], check=True)
        new.rename(folder)
    return str(folder)


def place(uri: str) -> str:
    """Returns a URI, or a path that is valid in other processes."""
    return uri if "://" in uri else os.path.abspath(uri)


def parser(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the options of both examples."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=place, help="the data set, in any layout; default: sample data")
    add(
        "--runs",
        type=place,
        help="s3://bucket/prefix, or a folder that all nodes see; default: ~/ray_results",
    )
    add("--name", help="the run's name: a run of this name is continued; default: a new name")
    add("--trainers", type=int, default=2, help="ranks; default 2")
    add("--gpu", action="store_true", help="one GPU for each rank")
    add("--workers", choices=["ray"], help="ray: a fleet of this job decodes; default: the ranks' own CPUs")
    add("--max-workers", type=int, default=8, help="the fleet grows up to this while ranks wait; default 8")
    add("--cpus-per-worker", type=int, default=1)
    add("--ingest-nodes", action="store_true", help=f"workers only where the resource {WORKER_RESOURCE} is")
    add("--threads", type=int, help="CPU threads of each rank's loaders; default: all that it may use")
    add("--save-every", type=int, default=200, help="steps between checkpoints; one more after each epoch")
    add("--max-failures", type=int, default=3, help="how often Ray restarts the ranks")
    return parser
