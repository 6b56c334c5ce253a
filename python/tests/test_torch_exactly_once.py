"""Ranks that train together see every sample exactly once per epoch, for any number of ranks and any parallelism."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

pytest.importorskip("torch")

from programs import torch_ranks, torch_records, torch_train
from programs.torch_records import Record


def trained(job: torch_train.Job, world_size: int) -> list[Record]:
    folder = Path(job.folder)
    codes = torch_ranks.launch(torch_train.train, world_size, folder, job)
    assert codes == [0] * world_size, torch_ranks.printed(folder)
    return torch_records.read(folder / "records")


def global_batches(records: list[Record]) -> dict[tuple[int, int], Counter[int]]:
    """Returns the samples of each step over all ranks, by (epoch, position)."""
    steps: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for record in records:
        steps[record.epoch, record.position].update(record.ids)
    return dict(steps)


@pytest.mark.parametrize(("parallel", "world_size"), [("ddp", 2), ("ddp", 4), ("fsdp2", 2), ("fsdp2", 4)])
def test_every_sample_once_an_epoch(imagenet: Path, tmp_path: Path, parallel: str, world_size: int) -> None:
    batch = {"global_batch_size": 40}
    job = torch_train.Job(str(imagenet), str(tmp_path), parallel=parallel, batch=batch, epochs=2)  # type: ignore[arg-type]
    records = trained(job, world_size)

    counts = torch_records.counts(records)
    assert sorted(counts) == [0, 1]
    for epoch, count in counts.items():
        assert len(count) == 200, f"epoch {epoch}: {len(count)} of 200 samples entered a step"
        assert set(count.values()) == {1}, f"epoch {epoch}: {count.most_common(3)} entered more than once"
    assert Counter((record.rank, record.epoch) for record in records) == {
        (rank, epoch): 5 for rank in range(world_size) for epoch in (0, 1)
    }, "ranks took different numbers of steps"
    order = {epoch: [r.ids for r in records if r.rank == 0 and r.epoch == epoch] for epoch in (0, 1)}
    assert order[0] != order[1], "the second epoch repeats the first one's order"


def test_global_batches_and_pictures_do_not_depend_on_the_world_size(imagenet: Path, tmp_path: Path) -> None:
    runs = {
        world_size: trained(
            torch_train.Job(str(imagenet), str(tmp_path / str(world_size)), batch={"global_batch_size": 40}),
            world_size,
        )
        for world_size in (1, 3)
    }
    one, three = (global_batches(records) for records in runs.values())
    assert one == three
    pictures = [
        {id: row for record in records for id, row in zip(record.ids, record.rows, strict=True)}
        for records in runs.values()
    ]
    assert pictures[0] == pictures[1], "augmentation depends on the world size"
    assert len(set(pictures[0].values())) == 200


def test_tensor_parallel_peers_get_identical_batches(imagenet: Path, tmp_path: Path) -> None:
    """In a mesh of 2 × 2, ranks 0 and 1 are peers, and so are 2 and 3. The data is split in two, not in four."""
    records = trained(
        torch_train.Job(str(imagenet), str(tmp_path), parallel="fsdp2+tp", batch={"batch_size": 10}), 4
    )

    by_rank: dict[int, list[tuple[int, list[int], list[int]]]] = defaultdict(list)
    for record in records:
        by_rank[record.rank].append((record.position, record.ids, record.rows))
    assert by_rank[0] == by_rank[1]
    assert by_rank[2] == by_rank[3]
    assert by_rank[0] != by_rank[2]
    count = torch_records.counts(record for record in records if record.rank in (0, 2))[0]
    assert len(count) == 200
    assert set(count.values()) == {1}
