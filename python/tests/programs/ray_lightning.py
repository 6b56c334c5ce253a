"""Lightning's Trainer in Ray Train's workers, under Ray's DDP and FSDP strategies. Pickled by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import ray.train
import torch
from ray.train.lightning import RayDDPStrategy, RayFSDPStrategy, RayLightningEnvironment, prepare_trainer
from torch.distributed.fsdp import FullyShardedDataParallel

from feedstock.lightning import RayReport

from .ray_loops import Journal, Model, count, die


class Module(lightning.LightningModule):
    def __init__(self, samples: int, journal: Journal, kill: list[int] | None) -> None:
        super().__init__()
        self.model = Model(samples)
        self.journal, self.kill = journal, kill

    def training_step(self, batch: dict[str, Any], batch_index: int) -> torch.Tensor:
        self.journal.step(self.global_step, batch)
        if self.kill == [self.journal.rank, self.global_step]:
            die()
        count(self.model.seen, batch)
        return self.model(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.trainer.model.parameters(), lr=0.05, momentum=0.9)


class CpuFSDP(RayFSDPStrategy):
    """Ray's strategy on a machine without accelerators.

    FSDP must be given the CPU explicitly, since Lightning passes the index of a device and the CPU has none. In
    addition, torch 2.11 crashes when it gathers a full state.
    """

    def __init__(self) -> None:
        super().__init__(state_dict_type="sharded")

    def _setup_model(self, model: torch.nn.Module) -> torch.nn.Module:
        return FullyShardedDataParallel(module=model, device_id=torch.device("cpu"), **self.kwargs)


def fit(config: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    loader, checkpoint = ray.train.get_dataset_shard("train"), ray.train.get_checkpoint()
    strategy = {"ddp": RayDDPStrategy, "fsdp": CpuFSDP}[config["strategy"]]()
    journal = Journal(config["folder"], loader, None if checkpoint is None else {"path": checkpoint.path})
    module = Module(config["samples"], journal, config.get("kill") if checkpoint is None else None)
    trainer = lightning.Trainer(
        max_epochs=config["epochs"],
        accelerator="cpu",
        devices="auto",
        strategy=strategy,
        plugins=[RayLightningEnvironment()],
        callbacks=[RayReport(config["every"])],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer = prepare_trainer(trainer)
    if checkpoint is None:
        trainer.fit(module, loader)
    else:
        with checkpoint.as_directory() as folder:
            trainer.fit(module, loader, ckpt_path=str(Path(folder, RayReport.CHECKPOINT_NAME)))
    return {"seen": module.model.seen.tolist(), "steps": trainer.global_step}
