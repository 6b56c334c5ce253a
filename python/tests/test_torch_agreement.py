"""If ranks would load different batches, all of them raise the same error before the first batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch.distributed as dist
from programs import torch_agreement, torch_ranks
from synthetic import synth

import feedstock as fs
from feedstock._agreement import TIMEOUT_SECONDS, _Ballot


@pytest.fixture(scope="module")
def fewer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns 190 of the samples of `imagenet`, like an older catalog of a growing data set."""
    folder = tmp_path_factory.mktemp("fewer")
    synth("imagenet", folder, "--samples", 190, "--seed", 1, "--layout", "parquet")
    return folder


def launch(program: Any, ranks: int, folder: Path, *args: Any) -> list[dict[str, Any]]:
    codes = torch_ranks.launch(program, ranks, folder, str(folder), *args)
    assert codes == [0] * ranks, torch_ranks.printed(folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def assert_all_fail(noted: list[dict[str, Any]], odd: int, *names: str) -> None:
    assert len({rank["error"] for rank in noted}) == 1, noted
    error = noted[0]["error"]
    assert error is not None
    assert f"rank {odd}" in error
    for name in names:
        assert f"{name}: " in error
    assert [rank["batches"] for rank in noted] == [0] * len(noted)
    assert all(rank["seconds"] < TIMEOUT_SECONDS for rank in noted), "no rank waits for the timeout"


@pytest.mark.parametrize("by_hand", [False, True])
def test_ranks_with_different_catalogs(imagenet: Path, fewer: Path, tmp_path: Path, by_hand: bool) -> None:
    data = [str(imagenet), str(fewer), str(imagenet)]
    noted = launch(torch_agreement.differ, 3, tmp_path, data, [{}] * 3, by_hand)
    assert_all_fail(noted, 1, "samples", "catalog")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"filter": "label >= 0"}, ["filter"]),
        ({"seed": 8}, ["seed"]),
        ({"batch_size": 20}, ["global batch size"]),
        ({"epoch": 1}, ["epoch"]),
        ({"step": 3}, ["position"]),
        ({"resize": (9, 9)}, ["ops"]),
        ({"world_size": 3}, ["world size"]),
    ],
)
def test_what_ranks_may_differ_in(
    imagenet: Path, tmp_path: Path, change: dict[str, Any], names: list[str]
) -> None:
    noted = launch(torch_agreement.differ, 2, tmp_path, [str(imagenet)] * 2, [{}, change], False)
    assert_all_fail(noted, 1, *names)


def test_two_ranks_that_differ_from_the_first_tell_the_same() -> None:
    store = dist.HashStore()
    ballots = [
        _Ballot(dist.PrefixStore("job", store), [0, 1, 2], "train.py:1", {"rank": rank, "seed": seed})
        for rank, seed in enumerate([7, 8, 9])
    ]
    assert ballots[0].verdict() is None
    assert "rank 1 and rank 0" in str(ballots[1].verdict())
    assert len({ballot.verdict() for ballot in ballots}) == 1


def test_ranks_that_agree_do_not_wait(imagenet: Path, tmp_path: Path) -> None:
    noted = launch(torch_agreement.differ, 4, tmp_path, [str(imagenet)] * 4, [{}] * 4, False)
    assert [(rank["error"], rank["batches"], rank["warnings"]) for rank in noted] == [(None, 5, [])] * 4
    assert all(rank["seconds"] < TIMEOUT_SECONDS for rank in noted)


def test_a_loader_on_some_ranks_only(imagenet: Path, fewer: Path, tmp_path: Path) -> None:
    noted = launch(torch_agreement.some_only, 2, tmp_path, str(imagenet), str(fewer))
    assert [(rank["error"], rank["batches"]) for rank in noted] == [(None, 10)] * 2
    assert noted[0]["alone"] > 0
    assert len(noted[0]["warnings"]) == 1
    assert "1 of 2 ranks" in noted[0]["warnings"][0]
    assert noted[1]["warnings"] == []


def test_a_rank_that_comes_late_fails_the_others_too(imagenet: Path, tmp_path: Path) -> None:
    noted = launch(torch_agreement.late, 2, tmp_path, str(imagenet))
    assert noted[0]["error"] == noted[1]["error"]
    assert "seed: 1 on rank 1, 0 on rank 0" in noted[0]["error"]
    assert noted[0]["batches"] > 0
    assert noted[1]["batches"] == 0


def test_groups_are_compared_for_themselves(imagenet: Path, fewer: Path, tmp_path: Path) -> None:
    noted = launch(torch_agreement.groups, 4, tmp_path, str(imagenet), str(fewer))
    assert [rank["error"] for rank in noted] == [None] * 4
    assert noted[0]["batches"] == noted[2]["batches"] != noted[1]["batches"] == noted[3]["batches"]


def test_a_time_out_must_be_a_number(imagenet: Path) -> None:
    from feedstock.torch import loader

    with pytest.raises(fs.ConfigError, match="compare_timeout must be .*; got -1"):
        loader(torch_agreement.pipeline(str(imagenet)), compare_timeout=-1)
