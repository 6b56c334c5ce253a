"""Trainer reports what it cannot do with a pipeline, before anything is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import feedstock as fs

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from programs.hf_trainer import Job, Model, arguments, pipeline
from transformers import Trainer, TrainingArguments, default_data_collator

from feedstock.huggingface import FeedstockTrainer, LoaderState, TrainerMixin


@pytest.fixture
def job(imagenet: Path, tmp_path: Path) -> Job:
    return Job(str(imagenet), str(tmp_path), "job", {"batch_size": 20}, per_device=20, epochs=1, save_steps=4)


def test_a_collator_has_nothing_to_do(job: Job) -> None:
    with pytest.raises(fs.ConfigError, match="data_collator does not apply"):
        FeedstockTrainer(Model(), arguments(job), default_data_collator, pipeline(job))
    with pytest.raises(fs.ConfigError, match="data_collator does not apply"):
        FeedstockTrainer(
            Model(), arguments(job), data_collator=default_data_collator, eval_dataset=pipeline(job)
        )


def test_a_data_set_has_no_batches(job: Job) -> None:
    with pytest.raises(fs.ConfigError, match=r"give a pipeline: dataset\.batch"):
        FeedstockTrainer(Model(), arguments(job), train_dataset=fs.Dataset(job.data))


def test_batch_sizes_agree(job: Job) -> None:
    trainer = FeedstockTrainer(Model(), arguments(job), train_dataset=pipeline(job).batch(10))
    with pytest.raises(
        fs.ConfigError, match=r"10 rows a step for 1 processes, but per_device_train_batch_size is 20"
    ):
        trainer.train()


def test_loaders_get_the_options_that_trainer_does_not_decide(job: Job) -> None:
    options: fs.LoaderOptions = {"device": "cpu", "finish": {"image": fs.finish_pictures("float16")}}
    made = FeedstockTrainer(
        Model(),
        arguments(job),
        train_dataset=pipeline(job),
        eval_dataset=pipeline(job).batch(8),
        loader_options=options,
    )
    for loader in (made.get_train_dataloader().loader, made.get_eval_dataloader().loader):
        batches = iter(loader)
        held = [next(batches), next(batches)]  # the number that Trainer holds without accumulation
        assert [str(batch["image"].dtype) for batch in held] == ["torch.float16"] * 2
    with pytest.raises(fs.ConfigError, match="must not have output, static, which Trainer decides"):
        FeedstockTrainer(
            Model(),
            arguments(job),
            train_dataset=pipeline(job),
            loader_options={"output": "numpy", "static": True},
        )


def test_batch_sizes_are_searched_for_with_a_pipeline_only(job: Job) -> None:
    loader = pipeline(job).loader(output="torch")
    with pytest.raises(
        fs.ConfigError, match="auto_find_batch_size starts over .*; give Trainer the pipeline"
    ):
        FeedstockTrainer(Model(), arguments(job, auto_find_batch_size=True), train_dataset=loader)


def test_an_unknown_option_of_loaders_names_the_one_that_was_meant(job: Job) -> None:
    options: Any = {"devise": "cpu"}
    with pytest.raises(TypeError, match=r"loader_options has no option 'devise' \(did you mean 'device'\?\)"):
        FeedstockTrainer(Model(), arguments(job), train_dataset=pipeline(job), loader_options=options)


def test_a_checkpoint_without_a_place_is_refused(job: Job) -> None:
    whole = FeedstockTrainer(Model(), arguments(job), train_dataset=pipeline(job))
    whole.train()
    path = Path(job.folder, "out", "checkpoint-4", "trainer_state.json")
    state = json.loads(path.read_text())
    assert state["stateful_callbacks"]["LoaderState"]["args"]["loader_state"]["position"] == 80
    del state["stateful_callbacks"]["LoaderState"]
    path.write_text(json.dumps(state))
    again = FeedstockTrainer(Model(), arguments(job), train_dataset=pipeline(job))
    with pytest.raises(fs.ConfigError, match="has no position in the data"):
        again.train(resume_from_checkpoint=str(path.parent))


def test_an_epoch_that_trainer_computes_wrong_is_refused(job: Job) -> None:
    """Half the batch size gives twice the steps, so Trainer would mistake the middle of the epoch for its start."""
    FeedstockTrainer(Model(), arguments(job), train_dataset=pipeline(job)).train()
    more: Any = {
        "data": job.data,
        "folder": job.folder,
        "name": "more",
        "epochs": 4,
        "batch": {"batch_size": 100},
    }
    larger = Job(**more, per_device=100)
    trainer = FeedstockTrainer(Model(), arguments(larger), train_dataset=pipeline(larger))
    with pytest.raises(fs.ConfigError, match="is of epoch 0 of the data, but Trainer, with 2 steps"):
        trainer.train(resume_from_checkpoint=str(Path(job.folder, "out", "checkpoint-4")))


def test_training_twice_is_two_runs(job: Job) -> None:
    trainer = FeedstockTrainer(Model(), arguments(job), train_dataset=pipeline(job))
    trainer.train()
    trainer.train()
    assert trainer.model.seen.tolist() == [2] * 200


def test_other_data_is_left_to_trainer(tmp_path: Path) -> None:
    class Mine(TrainerMixin, Trainer):
        pass

    arguments = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True)
    rows = [{"image": [[[0.0]]], "label": 0}] * 8
    trainer = Mine(Model(), arguments, train_dataset=rows)  # type: ignore[arg-type]
    assert len(trainer.get_train_dataloader()) == 1
    assert not arguments.ignore_data_skip
    assert not any(isinstance(callback, LoaderState) for callback in trainer.callback_handler.callbacks)


def test_a_pipeline_given_later_is_resumable_too(job: Job) -> None:
    trainer = FeedstockTrainer(Model(), arguments(job))
    trainer.train_dataset = pipeline(job)
    trainer.train()
    state = json.loads(Path(job.folder, "out", "checkpoint-4", "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["LoaderState"]["args"]["loader_state"]["position"] == 80
    assert trainer.args.ignore_data_skip
