"""Every way into a trainer takes a loader's options, and delivers on the trainer's GPU by default.

Without a GPU, "cpu" is the stand-in for it. The tests at the end need one, and so does `benches/gpu/adapters.py`.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from adapters import (
    ADAPTERS,
    accelerator,
    adaptive,
    by_accelerate,
    by_adaptive,
    by_adaptive_on_ray,
    by_lightning,
    by_ray,
    by_ray_torch_batches,
    by_torch,
    by_trainer,
    lightning,
    made,
    pipeline,
    shard,
    slots,
    stand_in,
    trainer,
)
from served import worker

import feedstock as fs
from feedstock import _device

__all__ = ["made", "pipeline", "slots", "stand_in"]  # fixtures

# ---- all options, through all adapters ----


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_options_of_a_device_arrive(pipeline: fs.Pipeline, made: list[Any], adapter: Any) -> None:
    finish = {"image": fs.finish_pictures("float16")}
    batches = list(adapter(pipeline, device="cpu", finish=finish, depth=3, nvjpeg=0.5))
    assert len(batches) == 10
    assert {batch["image"].dtype for batch in batches} == {torch.float16}
    assert {tuple(batch["image"].shape) for batch in batches} == {(20, 3, 16, 16)}
    _, options = made[-1]
    assert (options["device"], options["finish"], options["nvjpeg"]) == ("cpu", finish, 0.5)
    assert options["depth"] == (5 if adapter is by_trainer else 3), "Trainer holds two batches"


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_workers_prepare_the_same_bytes(
    imagenet: Path, pipeline: fs.Pipeline, made: list[Any], adapter: Any
) -> None:
    served = worker(imagenet)
    expected = {batch["sample_ids"].tolist()[0]: batch["image"] for batch in by_torch(pipeline)}
    options = {"device": "cpu", "workers": served.address}
    count = 0
    for batch in adapter(pipeline, **options):
        assert torch.equal(batch["image"], expected[batch["sample_ids"].tolist()[0]])
        count += 1
    assert count == 10
    assert made[-1][1]["workers"] == served.address
    served.stop()


@pytest.mark.skipif(importlib.util.find_spec("adaptdl") is None, reason="needs adaptdl")
def test_adaptdl_takes_all_of_them(imagenet: Path) -> None:
    """Runs in a separate process, since importing AdaptDL takes over the signals."""
    program = f"""
        import adaptdl.torch
        import feedstock as fs
        from feedstock.adaptdl import AdaptDLLoader
        from served import worker
        adaptdl.torch.init_process_group("gloo")
        pictures = fs.Dataset({str(imagenet)!r}).map("image", fs.decode_image(), fs.random_resized_crop(16))
        pipeline = pictures.shuffle(seed=7).batch(1, tail="pad").options(threads=1)
        served = worker({str(imagenet)!r})
        finish = {{"image": fs.finish_pictures("float16")}}
        options = {{"device": "cpu", "finish": finish, "depth": 3}}
        training = AdaptDLLoader(pipeline, 40, **options, workers=served.address)
        evaluation = AdaptDLLoader(pipeline, 40, **options, nvjpeg=0.5)
        training.autoscale_batch_size(40, (1, 40), gradient_accumulation=True)
        for epoch in adaptdl.torch.remaining_epochs_until(1):
            batches = iter(training)
            for _ in range(5):
                batch = next(batches)
                print(batch["image"].dtype, len(batch["valid"]))
            batches.close()
            assert training.loader._native.stats()
            for batch in evaluation:
                print(batch["image"].dtype, len(batch["valid"]))
            assert not evaluation.loader._native.stats(), "its slots are still allocated"
            assert evaluation.loader.ledger()["exact"]
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ADAPTDL_")}
    clean |= {"ADAPTDL_MASTER_ADDR": "127.0.0.1", "ADAPTDL_MASTER_PORT": str(port), "ADAPTDL_NUM_NODES": "1"}
    clean["GLOO_SOCKET_IFNAME"] = "lo"
    clean["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["torch.float16 40"] * 10, done.stdout + done.stderr


# ---- the trainer's GPU, by default ----

MOVERS = [by_lightning, by_accelerate, by_trainer, by_ray_torch_batches]


@pytest.mark.parametrize("adapter", MOVERS)
def test_trainers_get_batches_on_their_gpu(
    pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any], adapter: Any
) -> None:
    assert len(list(adapter(pipeline))) == 10
    assert made[-1][1]["device"] == "cpu"
    assert {str(device) for device in stand_in} == {"cpu"}, "the trainer's own device was looked at"
    assert len(list(adapter(pipeline, device=None))) == 10
    assert made[-1][1]["device"] is None


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_without_a_gpu_batches_stay_in_host_memory(
    pipeline: fs.Pipeline, made: list[Any], adapter: Any
) -> None:
    assert len(list(adapter(pipeline))) == 10
    assert {options["device"] for _, options in made} == {None}


@pytest.mark.parametrize("adapter", [by_torch, by_ray, by_adaptive, by_adaptive_on_ray])
def test_what_does_not_move_batches_leaves_them_in_host_memory(
    pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any], adapter: Any
) -> None:
    assert len(list(adapter(pipeline))) == 10
    assert {options["device"] for _, options in made} == {None}


@pytest.mark.parametrize("adapter", MOVERS)
def test_functions_of_map_python_get_host_memory(
    pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any], adapter: Any
) -> None:
    """They may use numpy. With a device, it is the one that was named."""
    doubled = pipeline.map_python(lambda batch: {**batch, "image": batch["image"].numpy() * 2 // 2})
    if adapter is by_lightning:
        doubled = doubled.map_python(lambda batch: {**batch, "image": torch.from_numpy(batch["image"])})
    assert len(list(adapter(doubled))) == 10
    assert made[-1][1]["device"] is None
    list(adapter(pipeline.map_python(lambda batch: batch), device="cpu"))
    assert made[-1][1]["device"] == "cpu"


def test_finishing_needs_no_device_where_the_trainer_has_one(pipeline: fs.Pipeline, made: list[Any]) -> None:
    """A program with `finish` runs on machines with and without a GPU."""
    finish = {"image": fs.finish_pictures("float16")}
    for adapter in (*MOVERS, by_ray):
        batch, *_ = list(adapter(pipeline, finish=finish))
        assert batch["image"].dtype == torch.float16
        assert made[-1][1]["device"] == "cpu"
    with pytest.raises(fs.ConfigError, match="need a device"):
        next(by_torch(pipeline, finish=finish))


def test_arrays_stay_in_host_memory(pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any]) -> None:
    for adapter in (by_accelerate, by_ray):
        assert len(list(adapter(pipeline, output="numpy"))) == 10
        assert made[-1][1]["device"] is None
    assert next(iter(shard(pipeline).iter_batches(batch_format="pyarrow"))).num_rows == 20
    assert made[-1][1]["device"] is None
    assert not any(stand_in)


def test_accelerate_places_nothing_if_it_is_told_so(
    pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any]
) -> None:
    from feedstock.huggingface import loader

    loader(accelerator(device_placement=False), pipeline)
    assert made[-1][1]["device"] is None


def test_names_of_gpus() -> None:
    names = [
        "cuda",
        "cuda:3",
        torch.device("cuda", 1),
        "cpu",
        torch.device("cpu"),
        "mps",
        "xpu:0",
        "meta",
        None,
    ]
    if torch.version.hip:
        pytest.skip("AMD's GPUs have the names of CUDA")
    assert [_device.trainers_gpu(name) for name in names] == [*names[:3], *[None] * 6]


def test_amds_gpus_are_not_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert _device.trainers_gpu("cuda:0") is None


# ---- a step gets the loader's memory: no framework copies it again ----


def test_lightnings_steps_use_the_slots(
    pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any], slots: set[int]
) -> None:
    pytest.importorskip("lightning")
    from feedstock.lightning import FeedstockDataModule

    used: list[int] = []
    data = FeedstockDataModule(pipeline, pipeline.batch(20, tail="pad"))
    fit, module = lightning(lambda batch: used.append(batch["image"].data_ptr()))
    fit.fit(module, datamodule=data)
    assert [options["device"] for _, options in made] == ["cpu", "cpu"]
    assert len(used) == 2 + 10 + 10
    assert set(used) <= slots


def test_trainers_models_use_the_slots(pipeline: fs.Pipeline, stand_in: list[Any], slots: set[int]) -> None:
    used: list[int] = []
    evaluation = pipeline.batch(20, tail="pad")
    one = trainer(pipeline, lambda image: used.append(image.data_ptr()), eval_dataset=evaluation)
    one.train()
    one.evaluate()
    assert len(used) == 20
    assert set(used) <= slots


def test_accelerates_and_rays_batches_are_the_slots(
    pipeline: fs.Pipeline, stand_in: list[Any], slots: set[int]
) -> None:
    from accelerate.utils import send_to_device

    one = accelerator()
    from feedstock.huggingface import loader

    for batch in one.prepare(loader(one, pipeline)):
        assert send_to_device(batch, one.device)["image"].data_ptr() in slots
    # Ray's batches are converted by the iterator, not by the loader.
    iterator = shard(pipeline)
    addresses: set[int] = set()
    for batch in iterator.iter_torch_batches(device="cpu", pin_memory=True):
        addresses.add(batch["image"].data_ptr())
        assert batch["image"].data_ptr() % 4096 == 0, "the start of a slot"
    assert len(addresses) <= iterator.loader.stats()["slots"]


# ---- AdaptiveLoader ----


def test_an_adaptive_loader_of_a_loader_has_its_options(pipeline: fs.Pipeline) -> None:
    with pytest.raises(fs.ConfigError, match="device, depth must be given where the loader is made"):
        adaptive(pipeline.loader(output="torch"), device="cpu", depth=3)
    batches = adaptive(pipeline.loader(output="torch", device="cpu"))
    assert sum(1 for _ in batches) == 10


def test_an_adaptive_loader_changes_batches_on_a_device(pipeline: fs.Pipeline, made: list[Any]) -> None:
    loader = adaptive(shard(pipeline), device="cpu", finish={"image": fs.finish_pictures("float16")})
    loader.autoscale_batch_size(40)
    batches = iter(loader)
    ids = next(batches)["sample_ids"].tolist()
    loader.reconfigure(0, 1)
    for batch in loader:
        assert batch["image"].dtype == torch.float16
        ids += batch["sample_ids"].tolist()
    assert sorted(ids) == list(range(200))


# ---- with a GPU ----


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_gpu_batches_of_all_adapters_are_the_same(pipeline: fs.Pipeline, adapter: Any) -> None:
    batches = list(adapter(pipeline, device="cuda:0"))
    assert len(batches) == 10
    for batch, expected in zip(batches, pipeline.loader(output="torch"), strict=True):
        assert batch["image"].is_cuda
        assert torch.equal(batch["image"].cpu(), expected["image"])
