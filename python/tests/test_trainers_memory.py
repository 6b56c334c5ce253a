"""Evaluations and retries give their slots and device memory back; and Ray's iterator changes places.

"cpu" is the stand-in for a GPU: see `adapters.py`.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from adapters import accelerator, alive, lightning, made, pipeline, runs, shard, stand_in, trainer

import feedstock as fs

__all__ = ["made", "pipeline", "stand_in"]  # fixtures

SAMPLES = 200

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
    assert sum(1 for _ in iterator.iter_torch_batches()) == 10
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
    assert sum(1 for _ in iterator.iter_torch_batches(device="cpu")) == 10
