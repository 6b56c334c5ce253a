"""Accelerate: `prepare` leaves the loader unchanged, and `save_state` keeps its position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

from programs import torch_ranks

MODULES = ("torch", "torch._dynamo", "accelerate")


def launch(world_size: int, job: Any) -> list[int]:
    from programs import hf_accelerate

    return torch_ranks.launch(hf_accelerate.train, world_size, Path(job.folder), job, modules=MODULES)


def job(data: Path, folder: Path, name: str, **options: Any) -> Any:
    from programs import hf_accelerate

    return hf_accelerate.Job(str(data), str(folder), name, **options)


def done(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    assert path.exists(), torch_ranks.printed(folder)
    result: dict[str, Any] = json.loads(path.read_text())
    return result


@pytest.mark.parametrize("ranks_after", [2, 1])
def test_rank_killed_in_mid_epoch(imagenet: Path, tmp_path: Path, ranks_after: int) -> None:
    codes = launch(2, job(imagenet, tmp_path, "killed", kill_at=14))
    assert codes[1] == -9, torch_ranks.printed(tmp_path)
    assert (tmp_path / "checkpoint" / "custom_checkpoint_0.pkl").exists()
    launch(ranks_after, job(imagenet, tmp_path, "resumed", resume=True))
    resumed = done(tmp_path, "resumed")
    assert resumed["seen"] == [2] * 200  # steps 12 and 13 were done twice, and committed once
    assert resumed["steps"] == 20
    assert resumed["ranks"] == [ranks_after, ranks_after]


@pytest.mark.parametrize(
    ("shape", "names", "expected"),
    [
        ((2, 2), ("dp_shard", "tp"), [[0, 2], [0, 2], [1, 2], [1, 2]]),
        ((2, 2), ("dp_replicate", "dp_shard"), [[0, 4], [1, 4], [2, 4], [3, 4]]),
        ((4,), ("cp",), [[0, 1]] * 4),
    ],
)
def test_peers_of_a_mesh_get_the_same_batches(
    tmp_path: Path, shape: tuple[int, ...], names: tuple[str, ...], expected: list[list[int]]
) -> None:
    from programs import hf_accelerate

    codes = torch_ranks.launch(
        hf_accelerate.mesh_coordinates, 4, tmp_path, str(tmp_path), shape, names, modules=MODULES
    )
    assert codes == [0] * 4, torch_ranks.printed(tmp_path)
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)] == expected
