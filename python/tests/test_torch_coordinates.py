"""The data-parallel rank of a process. PyTorch's fake backend provides meshes of many ranks without their processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("torch")

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import feedstock as fs
from feedstock.torch import Coordinates, coordinates


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@contextmanager
def process(rank: int, world_size: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_alone() -> None:
    assert coordinates() == Coordinates(rank=0, world_size=1)


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert coordinates() == (5, 6)


@pytest.mark.parametrize(
    ("rank", "world_size"), [("6", "6"), ("-1", "6"), ("one", "6"), ("1", None), (None, "2")]
)
def test_a_broken_environment_is_an_error(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, world_size: str | None
) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(fs.ConfigError, match="RANK="):
        coordinates()


def test_torch_distributed_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with process(3, 4):
        assert coordinates() == (3, 4)


def test_a_process_group() -> None:
    with process(3, 8):
        assert coordinates(group=dist.new_group([1, 3, 5, 7])) == (1, 4)
        with pytest.raises(fs.ConfigError, match="not in the process group"):
            coordinates(group=dist.new_group([0, 2]))


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        # rank 13 of 16, as (1, 1, 0, 1)
        ({"dp": 16}, (13, 16)),
        ({"replicate": 2, "shard": 8}, (13, 16)),
        ({"dp": 2, "tp": 8}, (1, 2)),
        ({"tp": 8, "dp": 2}, (1, 2)),
        ({"pp": 2, "dp": 2, "tp": 4}, (1, 2)),
        ({"pp": 2, "dp_replicate": 2, "dp_shard": 2, "tp": 2}, (2, 4)),
        ({"dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2}, (3, 4)),
        ({"dp_replicate": 2, "cp": 2, "dp_shard": 2, "tp": 2}, (2, 4)),
        ({"data_parallel": 4, "tensor_parallel": 4}, (3, 4)),
        ({"tp": 16}, (0, 1)),
    ],
)
def test_a_mesh(dims: dict[str, int], expected: tuple[int, int]) -> None:
    with process(13, 16):
        mesh = init_device_mesh("cpu", tuple(dims.values()), mesh_dim_names=tuple(dims))
        assert coordinates(mesh) == expected


def test_peers_share_and_the_rest_partition() -> None:
    """Among all 16 ranks, every data-parallel rank has exactly 4 tensor- and context-parallel peers."""
    found: dict[Coordinates, list[int]] = {}
    for rank in range(16):
        with process(rank, 16):
            mesh = init_device_mesh(
                "cpu", (2, 2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "cp", "tp")
            )
            found.setdefault(coordinates(mesh), []).append(rank)
    assert found == {Coordinates(r, 4): [4 * r, 4 * r + 1, 4 * r + 2, 4 * r + 3] for r in range(4)}


def test_named_dimensions_win() -> None:
    with process(13, 16):
        mesh = init_device_mesh("cpu", (4, 4), mesh_dim_names=("ep", "fsdp"))
        assert coordinates(mesh, data_dims="fsdp") == (1, 4)
        assert coordinates(mesh, data_dims=("ep", "fsdp")) == (13, 16)
        assert coordinates(mesh, data_dims=()) == (0, 1)
        with pytest.raises(fs.ConfigError, match=r"\['dp'\] are not dimensions.*'ep', 'fsdp'"):
            coordinates(mesh, data_dims="dp")


def test_a_slice_of_a_mesh() -> None:
    with process(13, 16):
        mesh = init_device_mesh("cpu", (4, 4), mesh_dim_names=("dp", "tp"))
        assert coordinates(mesh["dp"]) == (3, 4)


def test_what_is_unclear_is_not_guessed() -> None:
    with process(13, 16):
        with pytest.raises(fs.ConfigError, match=r"\['ep'\].*data_dims="):
            coordinates(init_device_mesh("cpu", (4, 4), mesh_dim_names=("ep", "dp")))
        with pytest.raises(fs.ConfigError, match="mesh_dim_names="):
            coordinates(init_device_mesh("cpu", (4, 4)))
        assert coordinates(init_device_mesh("cpu", (16,))) == (13, 16)
        with pytest.raises(fs.ConfigError, match="both given"):
            coordinates(init_device_mesh("cpu", (16,)), group=dist.group.WORLD)
        with pytest.raises(fs.ConfigError, match="no mesh"):
            coordinates(data_dims="dp")


def test_a_process_outside_the_mesh() -> None:
    from torch.distributed.device_mesh import DeviceMesh

    with process(3, 4), pytest.raises(fs.ConfigError, match="rank 3 is not in the mesh"):
        coordinates(DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",)))
