"""Every way into a trainer as a function from a pipeline and options to batches; and the stand-in for a trainer's GPU.

The stand-in is the device "cpu": it runs the device's thread and finishes batches in host memory.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import feedstock as fs
from feedstock import _device, _loader


@pytest.fixture(scope="module")
def pipeline(imagenet: Path) -> fs.Pipeline:
    pictures = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.random_resized_crop(16))
    return pictures.shuffle(seed=3).batch(20).options(threads=1)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Trainers have a GPU, whose stand-in is "cpu". Returns the trainers' devices that were looked at."""
    seen: list[Any] = []

    def trainers_gpu(device: Any) -> str | None:
        seen.append(device)
        return None if device is None else "cpu"

    monkeypatch.setattr(_device, "trainers_gpu", trainers_gpu)
    return seen


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[fs.Loader, fs.LoaderOptions]]:
    """Returns the loaders that were made, with the options that were applied."""
    found: list[tuple[fs.Loader, fs.LoaderOptions]] = []
    before = fs.Loader.__init__

    def init(self: fs.Loader, *args: Any, **options: Any) -> None:
        before(self, *args, **options)
        found.append((weakref.proxy(self), dict(options)))  # type: ignore[arg-type]

    monkeypatch.setattr(_loader.Loader, "__init__", init)
    return found


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Returns the addresses of the images that loaders delivered."""
    addresses: set[int] = set()
    before = fs.Batch.torch

    def convert(self: fs.Loader, batch: Any) -> Any:
        columns = before(batch, ids=True) if self.output == "torch" else batch
        if self.output == "torch":
            addresses.add(columns["image"].data_ptr())
        return columns

    monkeypatch.setattr(_loader.Loader, "_convert", convert)
    return addresses


def runs(loader: fs.Loader) -> bool:
    """Returns whether a loader has slots, threads that fill them, and buffers on the device."""
    return bool(loader._native.stats())


def alive(loader: fs.Loader) -> bool:
    try:
        return runs(loader)
    except ReferenceError:
        return False


# ---- the adapters: from a pipeline and options to copies of the batches of one epoch ----


def copies(batches: Any) -> Iterator[Any]:
    """Yields copies, which hold no slots."""
    return map(copy, batches)


def copy(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value.copy()
        for name, value in batch.items()
    }


def by_torch(pipeline: fs.Pipeline, **options: Any) -> Iterator[Any]:
    from feedstock.torch import loader

    yield from copies(loader(pipeline, **options))


def by_lightning(pipeline: fs.Pipeline, **options: Any) -> Iterator[Any]:
    pytest.importorskip("lightning")
    batches: list[Any] = []
    trainer, module = lightning(lambda batch: batches.append(copy(batch)))
    from feedstock.lightning import FeedstockDataModule

    trainer.fit(module, datamodule=FeedstockDataModule(pipeline, **options))
    yield from batches


def lightning(step: Callable[[Any], None], **options: Any) -> tuple[Any, Any]:
    """Returns a trainer for one epoch, and a module that calls `step` with every batch of training and validation."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any, index: int) -> Any:
            step(batch)
            return self.weight.sum()

        def validation_step(self, batch: Any, index: int) -> None:
            step(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "accelerator": "cpu", "devices": 1, "max_epochs": 1}
    return pl.Trainer(**{**quiet, **options}), Module()


def by_accelerate(pipeline: fs.Pipeline, **options: Any) -> Iterator[Any]:
    from feedstock.huggingface import loader

    yield from copies(loader(accelerator(), pipeline, **options))


def accelerator(**options: Any) -> Any:
    pytest.importorskip("accelerate")
    from accelerate import Accelerator

    return Accelerator(cpu=True, **options)


def by_trainer(pipeline: fs.Pipeline, **options: Any) -> Iterator[Any]:
    yield from copies(trainer(pipeline, loader_options=options).get_train_dataloader())


def trainer(
    pipeline: fs.Pipeline, forward: Callable[[Any], None] = lambda image: None, **options: Any
) -> Any:
    """Returns a Trainer for one epoch, whose model calls `forward` with every image."""
    pytest.importorskip("transformers")
    from transformers import TrainingArguments

    from feedstock.huggingface import FeedstockTrainer

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, image: Any, label: Any = None, sample_ids: Any = None) -> Any:
            forward(image)
            return {"loss": self.weight.sum(), "logits": sample_ids}

    arguments = options.pop("arguments", {})
    chosen = {
        "per_device_train_batch_size": 20,
        "per_device_eval_batch_size": 20,
        "num_train_epochs": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    made = TrainingArguments(os.environ["FEEDSTOCK_CACHE"] + "/trainer", **{**chosen, **arguments})
    return FeedstockTrainer(Model(), made, train_dataset=pipeline, **options)


def by_ray(pipeline: fs.Pipeline, **options: Any) -> Iterator[Any]:
    yield from copies(shard(pipeline, **options))


def by_ray_torch_batches(pipeline: fs.Pipeline, **options: Any) -> Iterator[Any]:
    yield from copies(shard(pipeline, **options).iter_torch_batches(device="cpu"))


def shard(pipeline: fs.Pipeline, **options: Any) -> Any:
    """Returns what `get_dataset_shard` returns in a worker, after its journey."""
    pytest.importorskip("ray")
    from ray import cloudpickle

    from feedstock.ray import DataConfig

    (named,) = DataConfig(**options).configure({"train": pipeline}, 1, None, None)
    return cloudpickle.loads(cloudpickle.dumps(named["train"]))


def by_adaptive(pipeline: fs.Pipeline, **options: Any) -> Iterator[Any]:
    yield from copies(adaptive(pipeline, **options))


def by_adaptive_on_ray(pipeline: fs.Pipeline, **options: Any) -> Iterator[Any]:
    yield from copies(adaptive(shard(pipeline), **options))


def adaptive(loader: Any, **options: Any) -> Any:
    pytest.importorskip("scipy")
    from feedstock.adaptive import AdaptiveLoader, Alone

    return AdaptiveLoader(loader, exchange=Alone(), **options)


ADAPTERS = [
    by_torch,
    by_lightning,
    by_accelerate,
    by_trainer,
    by_ray,
    by_ray_torch_batches,
    by_adaptive,
    by_adaptive_on_ray,
]
