"""Lightning's loops draw every sample once per epoch: over epochs, after checkpoints, and with validation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("lightning")

from programs import lightning_train, torch_ranks, torch_records
from programs.lightning_train import Job, Module
from programs.torch_records import Record

import feedstock as fs
from feedstock.lightning import FeedstockDataModule

MODULES = (*torch_ranks.TORCH_MODULES, "lightning.pytorch")


def checkpoint(job: Job, epoch: int, step: int) -> str:
    path = Path(job.folder) / "checkpoints" / f"epoch={epoch}-step={step}.ckpt"
    assert path.exists(), sorted(path.parent.iterdir())
    return str(path)


def assert_each_sample_once(folder: Path, epochs: int, start: tuple[int, int] = (0, 0)) -> list[Record]:
    """Checks the steps that count: those of all attempts, without those that a later attempt did again."""
    found, starts = torch_records.read(folder / "records"), torch_records.starts(folder)
    assert max(starts.values()) == start, "training did not begin where it should"
    records = torch_records.committed(found, starts)
    counts = torch_records.counts(records)
    assert sorted(counts) == list(range(epochs))
    for epoch, count in counts.items():
        assert len(count) == 200, f"epoch {epoch}: {200 - len(count)} samples are missing"
        assert set(count.values()) == {1}, f"epoch {epoch}: trained more than once: {count.most_common(3)}"
    return records


def assert_epochs_agree(module: Module) -> None:
    assert module.epochs
    assert all(loaders == lightnings for loaders, lightnings in module.epochs), module.epochs


def test_two_epochs_and_validation(imagenet: Path, tmp_path: Path) -> None:
    """The sanity check draws two batches first. Each later validation still sees each sample once."""
    module = lightning_train.fit(Job(str(imagenet), str(tmp_path), val=True))
    records = assert_each_sample_once(tmp_path, epochs=2)
    assert_epochs_agree(module)
    first, second = ([r.ids for r in records if r.epoch == epoch] for epoch in (0, 1))
    assert (len(first), len(second)) == (5, 5)
    assert first != second, "the second epoch repeats the first one's order"
    sanity, *validations = module.validated
    assert len(sanity) == 24
    assert [len(ids) for ids in validations] == [200, 200]
    assert all(len(set(ids)) == 200 for ids in validations)


def test_a_loader_without_the_data_module(imagenet: Path, tmp_path: Path) -> None:
    job = Job(str(imagenet), str(tmp_path))
    loader = lightning_train.data(job).pipelines["train"].loader(output="torch")  # type: ignore[union-attr]
    module = Module(job)
    lightning_train.trainer(job).fit(module, loader)
    assert_each_sample_once(tmp_path, epochs=2)
    assert_epochs_agree(module)


@pytest.mark.parametrize("scheduler", [False, True])
def test_resume_in_the_middle_of_an_epoch(imagenet: Path, tmp_path: Path, scheduler: bool) -> None:
    """Three of five steps are saved, the fourth is lost. With a scheduler that needs the number of steps, Lightning
    requests the loader once, before it has restored anything."""
    job = Job(str(imagenet), str(tmp_path), save_every=3, fault=4, scheduler=scheduler)
    lightning_train.fit(job)
    resumed = replace(job, attempt=1, fault=None)
    module = lightning_train.fit(resumed, checkpoint(job, epoch=0, step=3))
    assert_each_sample_once(tmp_path, epochs=2, start=(0, 120))
    assert_epochs_agree(module)


def test_resume_at_the_end_of_an_epoch(imagenet: Path, tmp_path: Path) -> None:
    """Lightning stores the loader's state in such a checkpoint but does not restore it: epoch 1 would be epoch 0."""
    job = Job(str(imagenet), str(tmp_path / "cut"), fault=6)
    lightning_train.fit(job)
    module = lightning_train.fit(replace(job, attempt=1, fault=None), checkpoint(job, epoch=0, step=5))
    cut = assert_each_sample_once(tmp_path / "cut", epochs=2, start=(1, 0))
    assert_epochs_agree(module)
    lightning_train.fit(Job(str(imagenet), str(tmp_path / "whole")))
    whole = assert_each_sample_once(tmp_path / "whole", epochs=2)
    assert [(r.epoch, r.position, r.ids, r.rows) for r in cut] == [
        (r.epoch, r.position, r.ids, r.rows) for r in whole
    ]


@pytest.mark.parametrize(("before", "after"), [(20, 40), (40, 10), (40, 16)])
def test_resume_with_another_batch_size(imagenet: Path, tmp_path: Path, before: int, after: int) -> None:
    """Epochs end with the data, although Lightning counted the first steps in other batches."""
    sizes = [{"global_batch_size": rows, "tail": "pad"} for rows in (before, after)]
    job = Job(str(imagenet), str(tmp_path), batch=sizes[0], save_every=2, fault=3)
    lightning_train.fit(job)
    resumed = replace(job, batch=sizes[1], attempt=1, fault=None)
    module = lightning_train.fit(resumed, checkpoint(job, epoch=0, step=2))
    assert_each_sample_once(tmp_path, epochs=2, start=(0, 2 * before))
    assert_epochs_agree(module)


def test_resume_with_a_batch_larger_than_what_is_left(imagenet: Path, tmp_path: Path) -> None:
    """160 of 200 samples are done, and the next batch has 60 rows: the epoch is over, and the next one is whole."""
    job = Job(str(imagenet), str(tmp_path), save_every=4, fault=4)
    lightning_train.fit(job)
    resumed = replace(job, batch={"global_batch_size": 60}, attempt=1, fault=None)
    module = lightning_train.fit(resumed, checkpoint(job, epoch=0, step=4))
    assert_epochs_agree(module)
    assert module.epochs == [(1, 1)] * 3


def test_fitting_on_with_the_same_trainer(imagenet: Path, tmp_path: Path) -> None:
    job = Job(str(imagenet), str(tmp_path), trainer={"max_epochs": 1})
    module, trainer, data = Module(job), lightning_train.trainer(job), lightning_train.data(job)
    trainer.fit(module, datamodule=data)
    assert data.train_loader is not None
    assert (data.train_loader.ledger() or {})["exact"]
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, datamodule=data)
    assert_each_sample_once(tmp_path, epochs=2, start=(1, 0))
    assert_epochs_agree(module)

    another = replace(job, attempt=1, folder=str(tmp_path / "another"))
    module = Module(another)
    lightning_train.trainer(another).fit(module, datamodule=data)  # a separate training, from the start
    assert_each_sample_once(tmp_path / "another", epochs=1)


def test_limited_epochs_leave_nothing_out(imagenet: Path, tmp_path: Path) -> None:
    """`limit_train_batches` cuts Lightning's epochs, not the data's: the next one continues where it stopped."""
    options = {"limit_train_batches": 3, "max_epochs": 4, "reload_dataloaders_every_n_epochs": 1}
    lightning_train.fit(Job(str(imagenet), str(tmp_path), trainer=options))
    records = assert_each_sample_once(tmp_path, epochs=2)
    assert [(r.epoch, r.position // 40) for r in records] == [(e, s) for e in (0, 1) for s in range(5)]


def test_an_endless_mix(imagenet: Path, tmp_path: Path) -> None:
    """Lightning needs a number of steps. Then a mix also resumes at the next sample."""
    job = Job(str(imagenet), str(tmp_path), endless=True)
    with pytest.raises(fs.ConfigError, match="limit_train_batches"):
        lightning_train.trainer(job).fit(Module(job), datamodule=lightning_train.data(job))

    job = replace(
        job, folder=str(tmp_path / "cut"), save_every=2, fault=3, trainer={"limit_train_batches": 4}
    )
    lightning_train.fit(job)
    lightning_train.fit(replace(job, attempt=1, fault=None), checkpoint(job, epoch=0, step=2))
    folder = tmp_path / "cut"
    records = torch_records.committed(torch_records.read(folder / "records"), torch_records.starts(folder))
    assert [(record.epoch, record.position) for record in records] == [(0, 40 * step) for step in range(8)]


def test_two_ranks_then_one(imagenet: Path, tmp_path: Path) -> None:
    """DDP on two ranks fails in the middle of an epoch and resumes with one."""
    two = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": True}
    job = Job(str(imagenet), str(tmp_path), save_every=3, fault=4, trainer=two, batch={"batch_size": 20})
    codes = torch_ranks.launch(lightning_train.fit_rank, 2, tmp_path, job, modules=MODULES)
    assert codes == [0, 0], torch_ranks.printed(tmp_path)
    records = torch_records.read(tmp_path / "records")
    assert {record.rank for record in records} == {0, 1}
    module = lightning_train.fit(
        replace(job, attempt=1, fault=None, trainer={}), checkpoint(job, epoch=0, step=3)
    )
    assert_each_sample_once(tmp_path, epochs=2, start=(0, 120))
    assert_epochs_agree(module)


def test_model_parallel_ranks_share_their_data(imagenet: Path, tmp_path: Path) -> None:
    """`ModelParallelStrategy` of 2 × 2: tensor-parallel peers get identical batches."""
    job = Job(str(imagenet), str(tmp_path), batch={"batch_size": 20}, trainer={"max_epochs": 1})
    codes = torch_ranks.launch(lightning_train.fit_model_parallel, 4, tmp_path, job, modules=MODULES)
    assert codes == [0] * 4, torch_ranks.printed(tmp_path)
    records = torch_records.read(tmp_path / "records")
    by_rank = {rank: [(r.position, r.ids, r.rows) for r in records if r.rank == rank] for rank in range(4)}
    assert by_rank[0] == by_rank[1]
    assert by_rank[2] == by_rank[3]
    count = torch_records.counts(record for record in records if record.rank in (0, 2))[0]
    assert (len(count), set(count.values())) == (200, {1})


def test_without_training_data(imagenet: Path, tmp_path: Path) -> None:
    job = Job(str(imagenet), str(tmp_path))
    data = FeedstockDataModule(val=lightning_train.data(replace(job, val=True)).pipelines["val"])
    with pytest.raises(fs.ConfigError, match="train="):
        lightning_train.trainer(job).fit(Module(job), datamodule=data)
    module = Module(job)
    lightning_train.trainer(replace(job, val=True)).validate(module, datamodule=data, verbose=False)
    assert len(module.validated[0]) == len(set(module.validated[0])) == 200
    assert json.dumps(data.state_dict()) == "{}"


def test_the_state_is_saved_under_the_class_name(imagenet: Path, tmp_path: Path) -> None:
    job = Job(str(imagenet), str(tmp_path), trainer={"max_epochs": 1})
    lightning_train.fit(job)
    import torch

    saved = torch.load(checkpoint(job, epoch=0, step=5), weights_only=True)
    assert (
        saved["FeedstockDataModule"]["train"]["epoch"],
        saved["FeedstockDataModule"]["train"]["position"],
    ) == (1, 0)
