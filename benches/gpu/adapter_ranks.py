"""The processes of `adapters.py`: trains through one adapter, and measures copies by the GPU's clocks."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import feedstock as fs

WARM_UP = 10


class Step:
    """What a training step does with a batch. Measures the steps after the warm-up, and ends the training.

    Args:
        job: The job, as `adapters.py` describes it.
        rank: The rank of this process.
        milliseconds: The time of the matrix products of a step.
    """

    def __init__(self, job: dict[str, Any], rank: int, milliseconds: float) -> None:
        self.job, self.rank, self.done, self.milliseconds = job, rank, 0, milliseconds
        self._profile: Any = None
        self._began = 0.0
        self._compute: Callable[[], None] = lambda: None
        if not job["stand_in"]:
            from report import gemms

            self._compute = gemms(milliseconds)

    @property
    def is_last(self) -> bool:
        return self.done == WARM_UP + self.job["steps"]

    def __call__(self, image: torch.Tensor) -> None:
        job = self.job
        if self.is_last:
            return
        assert tuple(image.shape) == (job["batch"], job["size"], job["size"], 3), image.shape
        assert job["stand_in"] or image.is_cuda, "the batch is not on the GPU"
        image[:1, :1, :1, :1].add_(0)  # the model's first kernel reads the batch
        self._compute()
        self.done += 1
        if self.done == WARM_UP and not job["stand_in"]:
            self._begin()
        if self.is_last:
            self._end()

    def _begin(self) -> None:
        torch.cuda.synchronize()
        activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()
        self._began = time.perf_counter()

    def _end(self) -> None:
        found: dict[str, Any] = {"steps": self.job["steps"]}
        if self._profile is not None:
            torch.cuda.synchronize()
            seconds = time.perf_counter() - self._began
            self._profile.stop()
            found |= self._measured()
            found |= {"step_ms": seconds / self.job["steps"] * 1e3, "compute_ms": self.milliseconds}
        Path(self.job["folder"], f"rank-{self.rank}.json").write_text(json.dumps(found))

    def _measured(self) -> dict[str, Any]:
        from report import beside

        path = Path(self.job["folder"], f"trace-{self.rank}.json")
        self._profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
        whole = self.job["batch"] * self.job["size"] ** 2 * 3
        moves = [
            event for event in events if event.get("cat") == "gpu_memcpy" and event["args"]["bytes"] == whole
        ]
        copies = [event for event in moves if "HtoD" in event["name"]]
        kernels = [event for event in events if event.get("cat") == "kernel"]
        return {
            "copies": len(copies),
            "pageable": sum("Pageable" in event["name"] for event in copies),
            "moved_again": len(moves) - len(copies),
            "overlap": beside(copies, kernels),
        }


def pipeline(job: dict[str, Any]) -> fs.Pipeline:
    pictures = fs.Dataset(job["data"]).map("image", fs.decode_image(), fs.random_resized_crop(job["size"]))
    return pictures.shuffle(seed=1).batch(job["batch"])


def step(job: dict[str, Any], rank: int) -> Step:
    """Returns the step of a model that takes a little longer than decoding a batch takes with this process's CPUs.

    If decoding took longer, no batch would be ready to be copied ahead.
    """
    if job["stand_in"]:
        from feedstock import _device

        _device.trainers_gpu = lambda device: None if device is None else "cpu"
        return Step(job, rank, 0.0)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    from report import seconds_a_batch

    with pipeline(job).loader() as loader:
        return Step(job, rank, 1.25e3 * seconds_a_batch(loader, warm_up=5, batches=10))


def feed(work: Step, batches: Any) -> None:
    """Takes epoch after epoch until the last step."""
    while not work.is_last:
        for batch in batches:
            work(batch["image"])
            if work.is_last:
                break


def gpu(job: dict[str, Any]) -> str:
    return "cpu" if job["stand_in"] else "cuda"


def by_torch(job: dict[str, Any]) -> None:
    from feedstock.torch import loader

    work = step(job, int(os.environ["RANK"]))
    dist.init_process_group("gloo" if job["stand_in"] else "nccl")
    feed(work, loader(pipeline(job), device=gpu(job)))
    dist.destroy_process_group()


def by_adaptive(job: dict[str, Any]) -> None:
    from feedstock.adaptive import AdaptiveLoader

    work = step(job, int(os.environ["RANK"]))
    dist.init_process_group("gloo" if job["stand_in"] else "nccl")
    feed(work, AdaptiveLoader(pipeline(job), device=gpu(job)))
    dist.destroy_process_group()


def by_lightning(job: dict[str, Any]) -> None:
    import lightning.pytorch as pl

    from feedstock.lightning import FeedstockDataModule

    work = step(job, int(os.environ["RANK"]))

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any, index: int) -> Any:
            work(batch["image"])
            return self.weight.sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pl.Trainer(
        accelerator="cpu" if job["stand_in"] else "gpu",
        devices=job["gpus"],
        strategy="ddp" if job["gpus"] > 1 else "auto",
        max_steps=WARM_UP + job["steps"],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Module(), datamodule=FeedstockDataModule(pipeline(job)))


def by_accelerate(job: dict[str, Any]) -> None:
    from accelerate import Accelerator

    from feedstock.huggingface import loader

    work = step(job, int(os.environ["RANK"]))
    accelerator = Accelerator(cpu=job["stand_in"])
    feed(work, loader(accelerator, pipeline(job)))
    accelerator.end_training()


def by_trainer(job: dict[str, Any]) -> None:
    from transformers import TrainingArguments

    from feedstock.huggingface import FeedstockTrainer

    work = step(job, int(os.environ["RANK"]))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, image: torch.Tensor, label: Any = None) -> Any:
            work(image)
            return {"loss": self.weight.sum()}

    arguments = TrainingArguments(
        f"{job['folder']}/trainer",
        per_device_train_batch_size=job["batch"],
        max_steps=WARM_UP + job["steps"],
        save_strategy="no",
        report_to=[],
        use_cpu=job["stand_in"],
        disable_tqdm=True,
    )
    FeedstockTrainer(Model(), arguments, train_dataset=pipeline(job)).train()


def by_ray(job: dict[str, Any]) -> None:
    """Starts Ray on this machine; its workers are the ranks."""
    import ray
    import ray.train
    from ray.train.torch import TorchTrainer

    from feedstock.ray import DataConfig

    here = str(Path(__file__).parent)
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": paths, "FEEDSTOCK_CACHE": os.environ["FEEDSTOCK_CACHE"]}
    cpus = max(job["gpus"] + 1, os.cpu_count() or 1)
    ray.init(num_cpus=cpus, include_dashboard=False, runtime_env={"env_vars": environment})
    TorchTrainer(
        _ray_worker,
        train_loop_config=job,
        datasets={"train": pipeline(job)},
        dataset_config=DataConfig(),
        scaling_config=ray.train.ScalingConfig(num_workers=job["gpus"], use_gpu=not job["stand_in"]),
        run_config=ray.train.RunConfig(storage_path=f"{job['folder']}/runs", name="adapters"),
    ).fit()
    ray.shutdown()


def _ray_worker(job: dict[str, Any]) -> None:
    import ray.train
    from adapter_ranks import feed, gpu, step

    work = step(job, ray.train.get_context().get_world_rank())
    shard = ray.train.get_dataset_shard("train")
    if job["adapter"] == "ray-adaptive":
        from feedstock.adaptive import AdaptiveLoader

        feed(work, AdaptiveLoader(shard, device=gpu(job)))
    else:
        feed(work, shard.iter_torch_batches())


def by_adaptdl(job: dict[str, Any]) -> None:
    os.environ.update(
        ADAPTDL_MASTER_ADDR=os.environ["MASTER_ADDR"],
        ADAPTDL_MASTER_PORT=str(int(os.environ["MASTER_PORT"]) + 1),
        ADAPTDL_REPLICA_RANK=os.environ["RANK"],
        ADAPTDL_NUM_REPLICAS=os.environ["WORLD_SIZE"],
        ADAPTDL_NUM_NODES="1",
        TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1",
    )
    work = step(job, int(os.environ["RANK"]))  # before AdaptDL changes the environment
    import adaptdl.torch

    from feedstock.adaptdl import AdaptDLLoader

    adaptdl.torch.init_process_group("gloo" if job["stand_in"] else "nccl")
    loader = AdaptDLLoader(pipeline(job), job["batch"] * job["gpus"], device=gpu(job))
    for _ in adaptdl.torch.remaining_epochs_until(1000):
        for batch in loader:
            work(batch["image"])
            if work.is_last:
                return


RANKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "torch": by_torch,
    "adaptive": by_adaptive,
    "lightning": by_lightning,
    "accelerate": by_accelerate,
    "trainer": by_trainer,
    "ray": by_ray,
    "ray-adaptive": by_ray,
    "adaptdl": by_adaptdl,
}

if __name__ == "__main__":
    described: dict[str, Any] = json.loads(sys.argv[1])
    RANKS[described["adapter"]](described)
