"""A rank is killed in the middle of an epoch. The job resumes from its last checkpoint, in another shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from programs import torch_ranks, torch_records, torch_train

SIGKILLED = -9


def assert_each_sample_committed_once(folder: Path, epochs: int) -> None:
    records = torch_records.read(folder / "records")
    starts = torch_records.starts(folder)
    assert len(starts) == 2
    assert starts[1] > (0, 0), "the second attempt began at the start: nothing was resumed"
    committed = torch_records.committed(records, starts)
    assert len(committed) < len(records), "nothing was lost and repeated, so the kill tested nothing"
    counts = torch_records.counts(committed)
    assert sorted(counts) == list(range(epochs))
    for epoch, count in counts.items():
        assert len(count) == 200, f"epoch {epoch}: {200 - len(count)} samples are missing"
        assert set(count.values()) == {1}, f"epoch {epoch}: committed more than once: {count.most_common(3)}"


@pytest.mark.parametrize(
    ("parallel", "before", "after"),
    [
        # ranks and rows of a global batch, before and after the kill
        ("ddp", (2, 20), (4, 40)),
        ("fsdp2", (4, 40), (2, 16)),
        ("fsdp2", (2, 20), (3, 33)),
    ],
)
def test_killed_rank_then_another_world_size_and_batch_size(
    imagenet: Path, tmp_path: Path, parallel: str, before: tuple[int, int], after: tuple[int, int]
) -> None:
    # With tail="pad", the rows left over by a change of batch size also belong to the epoch.
    job = torch_train.Job(
        str(imagenet),
        str(tmp_path),
        parallel=parallel,  # type: ignore[arg-type]
        batch={"global_batch_size": before[1], "tail": "pad"},
        epochs=2,
        save_every=3,
        kill=(0, 1, 4),  # one step after the checkpoint at step 3 is done, and another has started
    )
    codes = torch_ranks.launch(torch_train.train, before[0], tmp_path, job)
    assert codes[1] == SIGKILLED, torch_ranks.printed(tmp_path)
    assert not (tmp_path / "done0").exists()

    job = replace(job, attempt=1, kill=None, batch={"global_batch_size": after[1], "tail": "pad"})
    codes = torch_ranks.launch(torch_train.train, after[0], tmp_path, job)
    assert codes == [0] * after[0], torch_ranks.printed(tmp_path)
    assert_each_sample_committed_once(tmp_path, epochs=2)


def test_torchrun_restarts_a_killed_rank(
    imagenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun's agent starts the ranks, detects that one died, and starts all of them again."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "")  # the agent sets it; undone after the test
    # Otherwise restarted ranks would use the store of the killed ones, and might read a dead peer's address there.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    job = torch_train.Job(
        str(imagenet), str(tmp_path), batch={"batch_size": 20}, save_every=2, kill=(0, 0, 3)
    )
    torch_ranks.server()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=1,
        run_id="resume",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        start_method="forkserver",
        signals_to_handle="",  # this process's handlers are pytest's
        logs_specs=DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), redirects=Std.ALL),
    )
    elastic_launch(config, torch_train.under_torchrun)(job)
    assert (tmp_path / "done1").exists(), "no rank was restarted"
    assert_each_sample_committed_once(tmp_path, epochs=1)
