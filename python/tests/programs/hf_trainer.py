"""A training job of `FeedstockTrainer` for tests, for any number of ranks. It can kill itself in mid-epoch.

The model counts, in its state, how often each sample id entered a step. The count is saved and restored with its
weights. At the end, it shows which samples the final weights were trained on.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from transformers import TrainerCallback, TrainingArguments

import feedstock as fs
from feedstock.huggingface import FeedstockTrainer

SAMPLES = 200
MODULES = (
    "torch",
    "torch._dynamo",
    "transformers.trainer",
    "accelerate",
)  # the ranks' server imports them once


@dataclass(frozen=True)
class Job:
    data: str
    folder: str
    name: str
    """The name of its result file, `<name>.json`."""
    batch: dict[str, Any]
    """Arguments of `Pipeline.batch`."""
    per_device: int
    """Trainer's number of rows, which must agree with the pipeline's."""
    accumulate: int = 1
    epochs: int = 2
    save_steps: int = 3
    kill_at: int | None = None
    """Kills rank 0 before this optimizer step."""
    resume: bool = False
    restore_callbacks: bool = False
    """Whether Trainer makes its callbacks again, from the checkpoint."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, 8), nn.ReLU(), nn.Linear(8, 1000))
        self.register_buffer("seen", torch.zeros(SAMPLES, dtype=torch.int64))

    def forward(
        self, image: torch.Tensor, sample_ids: torch.Tensor, labels: torch.Tensor | None = None
    ) -> Any:
        logits = self.net(image.float() / 255 - 0.5)
        assert labels is not None  # `label` was passed by the model's name for it
        if self.training:
            step = torch.zeros_like(self.seen)
            step.index_add_(0, sample_ids, torch.ones_like(sample_ids))
            if dist.is_initialized():
                dist.all_reduce(step)  # so that it is the same on all ranks: DDP takes rank 0's
            self.seen += step
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": sample_ids}


class Kill(TrainerCallback):
    def __init__(self, at: int | None) -> None:
        self.at = at

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.at and state.is_world_process_zero:
            os.kill(os.getpid(), signal.SIGKILL)


def pipeline(job: Job) -> fs.Pipeline:
    pictures = fs.Dataset(job.data).map("image", fs.decode_image(), fs.random_resized_crop(16))
    return pictures.shuffle(seed=5, window=64).batch(**job.batch).options(threads=1)


def arguments(job: Job, **more: Any) -> TrainingArguments:
    # Accelerate requires an address even if the process group exists already; it is not used
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    return TrainingArguments(
        str(Path(job.folder, "out")),
        per_device_train_batch_size=job.per_device,
        gradient_accumulation_steps=job.accumulate,
        num_train_epochs=job.epochs,
        save_steps=job.save_steps,
        logging_steps=1,
        restore_callback_states_from_checkpoint=job.restore_callbacks,
        learning_rate=0.01,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **more,
    )


def train(job: Job) -> None:
    torch.manual_seed(0)
    trainer = FeedstockTrainer(
        Model(), arguments(job), train_dataset=pipeline(job), callbacks=[Kill(job.kill_at)]
    )
    trainer.train(resume_from_checkpoint=job.resume or None)
    model = trainer.accelerator.unwrap_model(trainer.model)
    if trainer.is_world_process_zero():
        done = {
            "seen": model.seen.tolist(),
            "weights": [parameter.double().sum().item() for parameter in model.parameters()],
            "updates": trainer.state.global_step,
            "epochs": {line["step"]: line["epoch"] for line in trainer.state.log_history if "loss" in line},
            "ranks": trainer.args.world_size,
        }
        Path(job.folder, f"{job.name}.json").write_text(json.dumps(done))


def evaluate(job: Job) -> None:
    """Predicts each sample's id, with a batch size that leaves a padded last step."""
    trainer = FeedstockTrainer(Model(), arguments(job, per_device_eval_batch_size=job.per_device))
    whole = fs.Dataset(job.data).map("image", fs.decode_image(), fs.random_resized_crop(16))
    whole = whole.batch(job.per_device, tail="pad").options(threads=1)
    for attempt in range(2):  # the second one also starts from the beginning
        output = trainer.predict(whole)
        if trainer.is_world_process_zero():
            ids = np.asarray(output.predictions).tolist()
            Path(job.folder, f"{job.name}-{attempt}.json").write_text(json.dumps(sorted(ids)))
