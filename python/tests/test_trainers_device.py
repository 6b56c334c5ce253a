"""Every way into a trainer takes a loader's options, and delivers on the trainer's GPU by default.

There is no GPU here: the stand-in is the device "cpu", which runs the device's thread and finishes batches in host
memory. `python/tests/test_trainers_device_gpu.py` and `benches/gpu/adapters.py` need GPUs.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served import worker

import feedstock as fs
from feedstock import _device, _loader

torch = pytest.importorskip("torch")

SAMPLES = 200


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


# ---- the adapters: from a pipeline and options to copies of the batches of one epoch ----


def copies(batches: Any) -> Iterator[Any]:
    """Yields copies, which hold no slots."""
    return map(copy, batches)


def copy(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value[:] for name, value in batch.items()
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

        def forward(self, image: Any, sample_ids: Any = None, valid: Any = None) -> Any:
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
    expected = {batch["sample_ids"].tolist()[0]: batch["image"] for batch in pipeline.loader(output="torch")}
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
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ADAPTDL_")}
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
    assert not stand_in


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


# ---- evaluations and retries give their memory back ----


def test_an_evaluation_frees_its_slots(pipeline: fs.Pipeline) -> None:
    loader = pipeline.loader(restart=True, device="cpu", output="torch")
    for _ in range(2):
        count = sum(len(batch["valid"]) for batch in loader)
        assert count == SAMPLES
        assert not runs(loader)
        assert loader.ledger()["exact"]  # type: ignore[index]
        assert loader.stats()["samples"] >= SAMPLES
    for step, batch in enumerate(loader):
        del batch
        if step == 2:
            assert runs(loader)
            break
    assert not runs(loader), "an evaluation that was left early"
    assert loader.position == 60
    assert sum(len(batch["valid"]) for batch in loader) == SAMPLES
    older, newer = iter(loader), iter(loader)
    next(newer)
    del older
    assert runs(loader), "the end of an older iterator does not stop a newer one"
    del newer
    assert not runs(loader)
    loader.close()
    assert loader.ledger() is None


def test_an_evaluation_with_functions_frees_its_slots(pipeline: fs.Pipeline) -> None:
    counted = pipeline.map_python(lambda batch: batch.num_rows, num_threads=2)
    loader = counted.loader(restart=True)
    for _ in range(2):
        assert sum(loader) == SAMPLES
        assert not runs(loader)
        assert next(iter(loader)) == 20
        assert not runs(loader)
        assert loader.position == 20


def test_training_goes_on_after_an_epoch(pipeline: fs.Pipeline) -> None:
    loader = pipeline.loader(device="cpu")
    for batch in loader:
        del batch
    assert runs(loader)
    loader.close()


def test_lightning_keeps_no_slots(pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any]) -> None:
    pytest.importorskip("lightning")
    from feedstock.lightning import FeedstockDataModule

    evaluation = pipeline.batch(20, tail="pad")
    data = FeedstockDataModule(pipeline, evaluation)
    found: list[list[bool]] = []
    fit, module = lightning(lambda batch: found.append([runs(one) for one, _ in made]), limit_val_batches=3)
    fit.fit(module, datamodule=data)
    # The sanity check draws two batches, before there is a training loader; it is left early, and so is the validation.
    validation, training = made[0][0], made[1][0]
    assert found[0] == [True]
    assert found[2] == [False, True], "training begins"
    assert found[-1] == [True, True], "validation"
    assert data.train_loader is not None
    assert not runs(validation)
    assert not runs(training)
    assert data.train_loader.ledger()["exact"]  # type: ignore[index]


def test_trainer_keeps_no_slots(pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any]) -> None:
    found: list[list[bool]] = []

    def forward(image: Any) -> None:
        gc.collect()
        found.append([alive(one) for one, _ in made])

    one = trainer(pipeline, forward, eval_dataset=pipeline.batch(20, tail="pad"))
    one.train()
    assert not alive(made[0][0])
    for _ in range(2):
        one.evaluate()
        assert not any(alive(loader) for loader, _ in made)
    assert found[0] == [True]
    assert found[-1] == [False, False, True]


def alive(loader: fs.Loader) -> bool:
    try:
        return runs(loader)
    except ReferenceError:
        return False


def out_of_memory() -> RuntimeError:
    return RuntimeError("CUDA out of memory.")  # as torch raises it


def test_accelerates_retries_give_slots_back(
    pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any], tmp_path: Path
) -> None:
    from feedstock.huggingface import loader

    one = accelerator()
    from accelerate.utils import find_executable_batch_size

    tried: list[tuple[int, list[bool]]] = []

    @find_executable_batch_size(starting_batch_size=20)
    def train(batch_size: int) -> fs.Loader:
        one.free_memory()
        tried.append((batch_size, [alive(former) for former, _ in made]))
        batches = loader(one, pipeline.batch(batch_size))
        for batch in batches:
            if len(batch["valid"]) > 17:
                raise out_of_memory()
        return batches

    batches = train()
    assert tried == [(20, []), (18, [False]), (16, [False, False])]
    assert len(one._custom_objects) == 1, "the checkpoint holds one loader"
    one.save_state(tmp_path)
    state = batches.state_dict()
    next(iter(batches))
    one.load_state(tmp_path)
    assert batches.state_dict() == state
    del batches
    gc.collect()
    assert not one._custom_objects


def test_trainers_search_for_a_batch_size_gives_slots_back(
    pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any]
) -> None:
    sizes: list[int] = []

    def forward(image: Any) -> None:
        sizes.append(len(image))
        assert [alive(former) for former, _ in made[:-1]] == [False] * (len(made) - 1)
        if len(image) > 17:
            raise out_of_memory()

    one = trainer(pipeline, forward, arguments={"auto_find_batch_size": True})
    one.train()
    assert sizes == [20, 18, *[16] * 12]
    assert one.state.global_step == 12
    assert len(made) == 3
    assert one.state.train_batch_size == 16


# ---- Ray: one iterator for several places ----


def test_rays_iterator_goes_on_when_batches_are_needed_elsewhere(
    pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any]
) -> None:
    iterator = shard(pipeline)
    ids: list[int] = []

    def take(batches: Any, count: int) -> None:
        taken = iter(batches)
        for _ in range(count):
            ids.extend(next(taken)["sample_ids"].tolist())

    take(iterator.iter_torch_batches(device="cpu"), 2)
    state = iterator.state_dict()
    take(iterator, 1)
    take(iterator.iter_batches(), 2)
    iterator.reconfigure(batch_size=10)
    take(iterator.iter_torch_batches(device="cpu"), 3)
    assert (iterator.batch_size, iterator.position) == (10, 130)
    take(iterator.iter_torch_batches(device="cpu", collate_fn=lambda arrays: arrays), 7)
    assert sorted(ids) == list(range(SAMPLES))
    assert (iterator.epoch, iterator.position) == (1, 0)
    assert [options["device"] for _, options in made] == ["cpu", None, "cpu", None]
    gc.collect()
    assert [alive(loader) for loader, _ in made] == [False, False, False, True]
    iterator.load_state_dict(state)
    take(iterator, 1)
    assert iterator.position == 50
    older = iter(iterator)
    take(iterator.iter_torch_batches(device="cpu"), 1)
    with pytest.raises(RuntimeError, match="invalidated by a later iter"):
        next(older)


def test_a_device_that_was_named_applies_to_all_of_rays_methods(
    pipeline: fs.Pipeline, made: list[Any]
) -> None:
    iterator = shard(pipeline, device="cpu")
    for batches in (iterator, iterator.iter_torch_batches(), iterator.iter_batches()):
        next(iter(batches))
    assert [options["device"] for _, options in made] == ["cpu"]


def test_rays_prefetch_is_for_the_workers_gpu(
    pipeline: fs.Pipeline, stand_in: list[Any], made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from feedstock.ray import iterator as module

    monkeypatch.setattr(module, "train_device", lambda: torch.device("cpu"))
    iterator = shard(pipeline)
    iterator.start_prefetch()
    assert len(list(iterator.iter_torch_batches())) == 10
    assert [options["device"] for _, options in made] == ["cpu"], "nothing was prefetched in vain"
    evaluation = shard(pipeline)
    next(iter(evaluation))
    evaluation.start_prefetch()
    assert [options["device"] for _, options in made[1:]] == [None]


def test_an_evaluation_of_ray_starts_over_in_another_place(
    pipeline: fs.Pipeline, stand_in: list[Any]
) -> None:
    from feedstock.ray import DataIterator

    iterator = DataIterator(pipeline, restart=True)
    next(iter(iterator))
    assert iterator.position == 20
    assert len(list(iterator.iter_torch_batches(device="cpu"))) == 10


# ---- AdaptiveLoader ----


def test_an_adaptive_loader_of_a_loader_has_its_options(pipeline: fs.Pipeline) -> None:
    with pytest.raises(fs.ConfigError, match="device, depth must be given where the loader is made"):
        adaptive(pipeline.loader(output="torch"), device="cpu", depth=3)
    batches = adaptive(pipeline.loader(output="torch", device="cpu"))
    assert len(list(batches)) == 10


def test_an_adaptive_loader_changes_batches_on_a_device(pipeline: fs.Pipeline, made: list[Any]) -> None:
    loader = adaptive(shard(pipeline), device="cpu", finish={"image": fs.finish_pictures("float16")})
    loader.autoscale_batch_size(40)
    batches = iter(loader)
    ids = next(batches)["sample_ids"].tolist()
    loader.reconfigure(0, 1)
    for batch in loader:
        assert batch["image"].dtype == torch.float16
        ids += batch["sample_ids"].tolist()
    assert sorted(ids) == list(range(SAMPLES))
