"""Cases in which ranks could fall out of step: too few samples, or a corrupt one. Also the protocols of PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from programs import torch_ranks, torch_records, torch_train

import feedstock as fs
from feedstock.torch import loader as torch_loader


def synth(folder: Path, samples: int, layout: str) -> Path:
    command = [sys.executable, "-m", "feedstock", "synth", "imagenet", str(folder)]
    subprocess.run(
        [*command, "--samples", str(samples), "--layout", layout],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return folder


def test_seven_samples_on_eight_ranks_are_an_error(tmp_path: Path) -> None:
    data = synth(tmp_path / "seven", 7, "parquet")
    pipeline = torch_train.pipeline(torch_train.Job(str(data), "", batch={"batch_size": 1}))
    for rank in range(8):  # every rank raises, so none waits for the others
        with pytest.raises(fs.ConfigError, match=r"7.*8|8.*7"):
            next(iter(pipeline.loader(rank, 8, output="torch")))


def test_seven_samples_on_eight_ranks_padded(tmp_path: Path) -> None:
    """There is one step, in which the eighth row is marked as padding. No rank has an empty epoch."""
    data = synth(tmp_path / "seven", 7, "parquet")
    job = torch_train.Job(str(data), str(tmp_path), batch={"batch_size": 1, "tail": "pad"}, epochs=2)
    codes = torch_ranks.launch(torch_train.train, 8, tmp_path, job)
    assert codes == [0] * 8, torch_ranks.printed(tmp_path)
    records = torch_records.read(tmp_path / "records")
    assert Counter(record.rank for record in records) == dict.fromkeys(range(8), 2)
    counts = torch_records.counts(records)
    assert {epoch: sorted(count.values()) for epoch, count in counts.items()} == {0: [1] * 7, 1: [1] * 7}


def test_one_corrupt_sample_keeps_ranks_in_step(tmp_path: Path) -> None:
    """The rank with the bad sample gets a marked substitute row, and takes its step with the others."""
    data = synth(tmp_path / "pictures", 60, "folder")
    victim = sorted(data.rglob("*.JPEG"))[31]
    victim.write_bytes(victim.read_bytes()[:40])
    job = torch_train.Job(str(data), str(tmp_path), batch={"batch_size": 10}, skip_fraction=0.05)
    codes = torch_ranks.launch(torch_train.train, 2, tmp_path, job)
    assert codes == [0, 0], torch_ranks.printed(tmp_path)
    records = torch_records.read(tmp_path / "records")
    assert Counter(record.rank for record in records) == {0: 3, 1: 3}
    count = torch_records.counts(records)[0]
    assert (len(count), set(count.values())) == (59, {1})
    bad = [id for record in records for id, valid in zip(record.ids, record.valid, strict=True) if not valid]
    assert len(bad) == 1
    assert bad[0] not in count


def test_meets_the_stateful_protocols(imagenet: Path) -> None:
    from torch.distributed.checkpoint.stateful import Stateful as DcpStateful

    loader = torch_loader(torch_train.pipeline(torch_train.Job(str(imagenet), "")))
    assert isinstance(loader, DcpStateful)
    torchdata = pytest.importorskip("torchdata.stateful_dataloader.stateful")
    assert isinstance(loader, torchdata.Stateful)


def test_state_survives_torch_save_with_weights_only(imagenet: Path, tmp_path: Path) -> None:
    """Trainers store the state in an ordinary checkpoint file, and load it in the recommended way."""
    pipeline = torch_train.pipeline(torch_train.Job(str(imagenet), ""))
    loader = torch_loader(pipeline)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    torch.save({"loader": loader.state_dict()}, tmp_path / "checkpoint.pt")
    expected = next(batches)["sample_ids"].tolist()

    resumed = torch_loader(pipeline)
    resumed.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["loader"])
    assert next(iter(resumed))["sample_ids"].tolist() == expected


def test_asynchronous_checkpoint(imagenet: Path, tmp_path: Path) -> None:
    job = torch_train.Job(str(imagenet), str(tmp_path))
    codes = torch_ranks.launch(torch_train.save_while_loading, 2, tmp_path, job)
    assert codes == [0, 0], torch_ranks.printed(tmp_path)


def test_batches_are_plain_dicts_of_tensors(imagenet: Path) -> None:
    batch = next(iter(torch_loader(torch_train.pipeline(torch_train.Job(str(imagenet), "")))))
    assert type(batch) is dict
    kinds = {
        name: (column.dtype, tuple(column.shape)) for name, column in batch.items() if torch.is_tensor(column)
    }
    assert kinds["image"] == (torch.uint8, (10, 32, 32, 3))
    assert kinds["label"] == (torch.int64, (10,))
    assert kinds["sample_ids"] == (torch.int64, (10,))
    assert kinds["valid"] == (torch.bool, (10,))
