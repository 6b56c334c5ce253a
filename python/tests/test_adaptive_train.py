"""Real training on gloo ranks: the batch size changes, ranks die and return in another number, and every sample counts
once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from programs import adaptive_train, torch_ranks, torch_records
from programs.adaptive_train import Job
from programs.torch_records import Record

SAMPLES = 200


def run(job: Job, ranks: int) -> list[dict[str, Any]]:
    folder = Path(job.folder)
    codes = torch_ranks.launch(adaptive_train.train, ranks, folder, job)
    assert codes == [0] * ranks, torch_ranks.printed(folder)
    return [json.loads((folder / f"done{job.attempt}-{rank}").read_text()) for rank in range(ranks)]


def starts(job: Job) -> dict[int, tuple[int, int]]:
    found = {}
    for path in Path(job.folder).glob("start*"):
        epoch, position = json.loads(path.read_text())
        found[int(path.name.removeprefix("start"))] = (epoch, position)
    return found


def assert_every_sample_once(records: list[Record], epochs: int) -> None:
    counts = torch_records.counts(records)
    assert sorted(counts) == list(range(epochs))
    for epoch, count in counts.items():
        assert len(count) == SAMPLES, f"epoch {epoch}: {len(count)} of {SAMPLES} samples entered a step"
        assert set(count.values()) == {1}, f"epoch {epoch}: {count.most_common(3)} entered more than once"


def assert_in_step(records: list[Record], ranks: int) -> None:
    """Checks that at every position all ranks took a batch of the same size."""
    steps: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for record in records:
        steps[record.attempt, record.epoch, record.position].append(len(record.ids))
    for place, sizes in steps.items():
        assert len(sizes) == ranks, (place, sizes)
        assert len(set(sizes)) == 1, (place, sizes)


def assert_totals(result: dict[str, Any], records: list[Record], epochs: int) -> None:
    ids = {id for record in records for id, valid in zip(record.ids, record.valid, strict=True) if valid}
    assert result["totals"]["rows"] == SAMPLES * epochs
    assert result["totals"]["ids"] == sum(ids) * epochs


@pytest.mark.parametrize(("ranks", "parallel"), [(2, "ddp"), (3, "ddp"), (2, "fsdp2")])
def test_the_batch_grows_on_all_ranks_at_once_and_no_sample_is_lost(
    imagenet: Path, tmp_path: Path, ranks: int, parallel: Any
) -> None:
    job = Job(str(imagenet), str(tmp_path), parallel=parallel, batch_size=4 * ranks)
    results = run(job, ranks)
    records = torch_records.read(tmp_path / "records")
    assert_every_sample_once(records, job.epochs)
    assert_in_step(records, ranks)
    assert_totals(results[0], records, job.epochs)
    sizes = [tuple(size) for size in results[0]["sizes"]]
    assert all([tuple(size) for size in result["sizes"]] == sizes for result in results)
    rows = [size for size, _ in sizes]
    assert rows[: job.interval] == [4] * job.interval
    assert rows[job.interval] == 8, "the gradient is noisy and large steps are cheap: the batch doubles"
    assert max(rows) > 8
    assert all(ranks * size <= job.max_batch_size for size in rows)
    assert results[0]["progress"] > len(rows)  # larger steps are worth more than one
    assert results[0]["totals"] == results[-1]["totals"]


def test_with_accumulation_an_optimizer_step_has_several_batches(imagenet: Path, tmp_path: Path) -> None:
    job = Job(str(imagenet), str(tmp_path), bounds=(1, 4), accumulation=True)
    results = run(job, 2)
    records = torch_records.read(tmp_path / "records")
    assert_every_sample_once(records, job.epochs)
    assert_in_step(records, 2)
    assert_totals(results[0], records, job.epochs)
    assert max(steps for _, steps in results[0]["sizes"]) >= 2
    assert {size for size, _ in results[0]["sizes"]} == {4}


def test_by_the_real_clock_the_ranks_agree_too(imagenet: Path, tmp_path: Path) -> None:
    job = Job(str(imagenet), str(tmp_path), quiet_clock=False, epochs=3)
    results = run(job, 2)
    records = torch_records.read(tmp_path / "records")
    assert_every_sample_once(records, job.epochs)
    assert_in_step(records, 2)
    assert_totals(results[1], records, job.epochs)


@pytest.mark.parametrize("accumulation", [False, True])
@pytest.mark.parametrize("ranks_after", [1, 3])
def test_a_rank_is_killed_and_others_go_on_where_the_checkpoint_was(
    imagenet: Path, tmp_path: Path, accumulation: bool, ranks_after: int
) -> None:
    job = Job(
        str(imagenet),
        str(tmp_path),
        accumulation=accumulation,
        bounds=(1, 4) if accumulation else (1, 32),
        save_every=3,
    )
    # Batch 13 is after the first change of the batch size. With accumulation, it is the first of an optimizer step's
    # two batches.
    killed = replace(job, kill=(1, 13))
    codes = torch_ranks.launch(adaptive_train.train, 2, tmp_path, killed)
    assert codes[1] == -9, torch_ranks.printed(tmp_path)
    assert codes[0] != 0
    resumed = replace(job, attempt=1)
    results = run(resumed, ranks_after)

    records = torch_records.read(tmp_path / "records")
    begun = starts(job)
    assert begun[0] == (0, 0)
    assert begun[1] > (0, 0), "it started from the beginning instead of resuming"
    committed = torch_records.committed(records, begun)
    assert_every_sample_once(committed, job.epochs)
    again = len(records) - len(committed)
    assert again > 0, "the kill lost nothing, so nothing was tested"
    assert_totals(results[0], records, job.epochs)
    first = results[0]["sizes"][0]
    total = ranks_after * first[0] * first[1]
    assert total > job.batch_size, f"the grown batch size did not come back: {first}"
    ended = [line.split() for line in (tmp_path / "ended").read_text().splitlines()]
    assert [int(epoch) for attempt, epoch in ended if attempt == "1"] == list(range(begun[1][0], job.epochs))
