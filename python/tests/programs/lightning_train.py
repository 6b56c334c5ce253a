"""Lightning's Trainer for tests: a small model, the records of what entered its steps, and a fault on demand."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import feedstock as fs
from feedstock.lightning import FeedstockDataModule

from .torch_records import Records, note_start
from .torch_train import Model


class Fault(RuntimeError):
    """The crash that a test requested."""


@dataclass(frozen=True)
class Job:
    data: str
    folder: str
    """The folder of records and checkpoints."""
    batch: dict[str, Any] = field(default_factory=lambda: {"global_batch_size": 40})
    attempt: int = 0
    save_every: int = 0
    """Steps between checkpoints `step={n}.ckpt`; 0 for one at each epoch's end."""
    fault: int | None = None
    """The number of steps after which training fails."""
    scheduler: bool = False
    """Whether to use a schedule that queries the trainer's number of steps when the optimizer is made."""
    val: bool = False
    endless: bool = False
    """Whether to train on an endless mix of the data set with itself."""
    trainer: dict[str, Any] = field(default_factory=dict)
    """Arguments of `Trainer`."""


class Module(lightning.LightningModule):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job, self.net = job, Model()
        self.records: Records | None = None
        self.before: dict[str, Any] = {}
        self.epochs: list[tuple[int, int]] = []
        """The loader's epoch and Lightning's, for each step."""
        self.validated: list[list[int]] = []
        """Sample ids of each validation run; the sanity check's come first."""

    def on_train_start(self) -> None:
        folder = Path(self.job.folder)
        self.records = self.records or Records(folder / "records", self.job.attempt, self.global_rank)
        self.before = self.trainer.train_dataloader.state_dict()
        if self.global_rank == 0:
            note_start(folder, self.job.attempt, self.before)

    def training_step(self, batch: dict[str, Any], batch_index: int) -> torch.Tensor:
        assert self.records is not None
        self.records.write(self.before["epoch"], self.before["position"], batch)
        self.epochs.append((self.before["epoch"], self.current_epoch))
        self.before = self.trainer.train_dataloader.state_dict()  # after this batch
        if self.job.fault is not None and self.trainer.global_step >= self.job.fault:
            raise Fault
        loss = nn.functional.cross_entropy(self.net(batch["image"]), batch["label"] % 10, reduction="none")
        return (loss * batch["valid"]).mean()

    def configure_model(self) -> None:
        if self.device_mesh is None:
            return
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        layers = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(self.net, self.device_mesh["tensor_parallel"], layers)
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def on_validation_epoch_start(self) -> None:
        self.validated.append([])

    def validation_step(self, batch: dict[str, Any], batch_index: int) -> None:
        self.validated[-1] += batch["sample_ids"][batch["valid"]].tolist()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        if not self.job.scheduler:
            return optimizer
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def data(job: Job) -> FeedstockDataModule:
    dataset = fs.Dataset(job.data)
    if job.endless:
        dataset = fs.Dataset.mix([(dataset, 2), (dataset.named("again"), 1)], stop="never")
    pictures = dataset.map("image", fs.decode_image(), fs.random_resized_crop(32)).options(threads=1)
    train = pictures.shuffle(seed=7).batch(**job.batch)
    return FeedstockDataModule(train, pictures.batch(12, tail="pad") if job.val else None)


def trainer(job: Job) -> lightning.Trainer:
    checkpoints = ModelCheckpoint(
        Path(job.folder) / "checkpoints",
        filename="{epoch}-{step}",
        save_top_k=-1,
        **({"every_n_train_steps": job.save_every} if job.save_every else {"every_n_epochs": 1}),
    )
    options: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 2,
        "limit_val_batches": int(job.val) * 1.0,
    }
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(callbacks=[checkpoints], **{**options, **quiet, **job.trainer})


def fit(job: Job, resume: str | None = None) -> Module:
    """Trains, from the checkpoint at this path if one is given. A requested `Fault` ends it without an error."""
    torch.manual_seed(0)
    module = Module(job)
    try:
        trainer(job).fit(module, datamodule=data(job), ckpt_path=resume)
    except Fault:
        assert job.fault is not None
    finally:
        if module.records is not None:
            module.records.file.close()
    return module


def fit_rank(job: Job, resume: str | None = None) -> None:
    """Runs one rank of `fit`, in a process group that exists already."""
    os.environ.update(TORCHELASTIC_RUN_ID="test", GROUP_RANK="0", LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"])
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0")  # not used: the group exists
    fit(job, resume)


def fit_model_parallel(job: Job) -> None:
    """Runs one of four ranks in a 2 × 2 mesh of data and tensor parallelism."""
    from lightning.pytorch.strategies import ModelParallelStrategy

    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2)
    fit_rank(replace(job, trainer={**job.trainer, "strategy": strategy, "devices": 4}))
