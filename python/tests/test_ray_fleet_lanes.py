"""Batches made by a fleet are byte-identical to those of the rank's machine, even when workers fail, join or leave."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import feedstock as fs

pytest.importorskip("torch")
pytest.importorskip("ray")

import numpy as np
import ray
import ray.train
import torch.distributed as dist
from programs.ray_cluster import PATIENCE_S, RayCluster
from ray.train.torch import TorchTrainer
from test_ray_fleet import QUICK, FakeLoader, serving, until, workers_by_name

from feedstock.ray import WORKER_RESOURCE, Fleet, Scaling

EPOCHS = 4  # 100 steps: enough that a change in the middle takes effect in the middle


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def nodes(cluster: RayCluster) -> Iterator[list[Any]]:
    """Returns two nodes with room for three workers each."""
    added = [cluster.add_node(**{WORKER_RESOURCE: 3}) for _ in range(2)]
    yield added
    until("no worker", lambda: not workers_by_name())
    for node in added:
        cluster.remove_node(node)


@pytest.fixture(scope="module")
def pipeline(imagenet: Path) -> fs.Pipeline:
    """Returns a pipeline of 25 steps per epoch, with two slots, so that little is made ahead."""
    pictures = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.random_resized_crop(16))
    return pictures.shuffle(seed=7, window=64).batch(global_batch_size=8).options(threads=1, slots=2)


def fleet_of(pipeline: fs.Pipeline, *bounds: int, **options: Any) -> Fleet:
    """Starts a fleet without help from this machine, so that all rows come from workers."""
    given = {
        "cpus_per_worker": 0.1,
        "resources": {WORKER_RESOURCE: 1},
        "local": "never",
        "_timing": QUICK,
        **options,
    }
    return Fleet(pipeline, *bounds, **given)


def epochs(loader: Any) -> Iterator[dict[str, Any]]:
    for _ in range(EPOCHS):
        yield from loader


def digest(batches: Iterable[dict[str, Any]]) -> str:
    """Returns the digest of all bytes of all columns, in order."""
    found = hashlib.sha256()
    for batch in batches:
        for name, column in batch.items():
            found.update(name.encode())
            found.update(
                np.ascontiguousarray(column).tobytes() if hasattr(column, "dtype") else repr(column).encode()
            )
    return found.hexdigest()


@pytest.fixture(scope="module")
def quiet(pipeline: fs.Pipeline) -> str:
    """Returns the digest of a run on this machine alone."""
    with pipeline.loader(output="numpy") as loader:
        return digest(epochs(loader))


def test_the_same_bytes(nodes: list[Any], pipeline: fs.Pipeline, quiet: str) -> None:
    with fleet_of(pipeline, 2) as fleet:
        fleet.wait(2, timeout=PATIENCE_S)
        with fleet.loader(0, 1, output="numpy") as loader:
            assert digest(epochs(loader)) == quiet
            assert loader.ledger()["exact"]

            def another_epoch_was_read_from_both() -> bool:
                before = {worker["number"]: worker["samples"] for worker in serving(fleet)}
                assert sum(1 for _ in loader) == 25
                return len(before) == 2 and all(before.values())

            # A worker that was slow to answer at first gets the next request only after these epochs.
            until("samples from both workers", another_epoch_was_read_from_both)
        until("their counts", lambda: sum(w["samples"] for w in serving(fleet)) >= 200 * EPOCHS)


def test_functions_of_rows_run_on_actors(nodes: list[Any], pipeline: fs.Pipeline) -> None:
    def fn(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"image": row["image"] * np.float32(rng.random()), "parent": os.getppid()}

    mapped = pipeline.map_rows(fn, executor="worker", num_workers=1)
    with fleet_of(mapped, 1, allow_code=True) as fleet:
        fleet.wait(timeout=PATIENCE_S)
        (process,) = {worker["pid"] for worker in serving(fleet)}
        with fleet.loader(0, 1, output="numpy") as loader, mapped.loader(output="numpy") as alone:
            for batch, expected in zip(loader, alone, strict=True):
                assert batch["image"].tobytes() == expected["image"].tobytes()
                assert set(batch["parent"].tolist()) == {process}


def test_actors_make_items_of_from_torch(nodes: list[Any]) -> None:
    class Numbers:
        def __len__(self) -> int:
            return 48

        def __getitem__(self, index: int) -> Any:
            return index, np.random.rand(3), os.getppid()

    items = fs.from_torch(Numbers(), num_workers=1).shuffle(seed=1).batch(8)
    with fleet_of(items, 1, allow_code=True) as fleet:
        fleet.wait(timeout=PATIENCE_S)
        (process,) = {worker["pid"] for worker in serving(fleet)}
        with fleet.loader(0, 1, output="numpy") as loader, items.loader(output="numpy") as alone:
            for batch, expected in zip(loader, alone, strict=True):
                assert [batch[part].tobytes() for part in (0, 1)] == [
                    expected[part].tobytes() for part in (0, 1)
                ]
                assert set(batch[2].tolist()) == {process}


def test_from_an_address_and_files(
    nodes: list[Any], pipeline: fs.Pipeline, quiet: str, tmp_path: Path
) -> None:
    """A trainer outside of Ray finds workers like this."""
    with fleet_of(pipeline, 1) as fleet:
        fleet.wait(timeout=PATIENCE_S)
        fleet.credentials.save(tmp_path / "fleet")
        assert (tmp_path / "fleet" / "client.key").stat().st_mode & 0o077 == 0
        workers = fs.Workers(
            fleet.address,
            token=fleet.token,
            ca=tmp_path / "fleet" / "ca.pem",
            certificate=tmp_path / "fleet" / "client.pem",
            key=tmp_path / "fleet" / "client.key",
            server_name=fleet.server_name,
        )
        with pipeline.loader(0, 1, output="numpy", workers=workers) as loader:
            assert digest(epochs(loader)) == quiet


def test_before_there_is_a_worker(nodes: list[Any], pipeline: fs.Pipeline, quiet: str) -> None:
    """Ranks use their own CPUs while Ray looks for a node."""
    elsewhere = {"resources": {WORKER_RESOURCE: 1, "late": 1}}
    with fleet_of(pipeline, 1, local="fallback", **elsewhere) as fleet:
        with fleet.loader(0, 1, output="numpy") as loader:
            assert digest(epochs(loader)) == quiet
        assert serving(fleet) == []


def test_a_node_lost_in_mid_epoch(
    cluster: RayCluster, nodes: list[Any], pipeline: fs.Pipeline, quiet: str
) -> None:
    with fleet_of(pipeline, 2) as fleet:
        fleet.wait(2, timeout=PATIENCE_S)
        with fleet.loader(0, 1, output="numpy") as loader:

            def batches() -> Iterator[dict[str, Any]]:
                for step, batch in enumerate(epochs(loader)):
                    if step == 30:
                        cluster.remove_node(nodes.pop())
                    yield batch

            assert digest(batches()) == quiet
            assert loader.ledger()["exact"]
        until("a replacement", lambda: [w["node"] for w in serving(fleet)] == [nodes[0].node_id] * 2)


def test_from_one_worker_to_five_to_two_in_mid_epoch(
    nodes: list[Any], pipeline: fs.Pipeline, quiet: str
) -> None:
    scaling = Scaling(out_share=0.5, out_seconds=0.5, in_share=0.3, in_seconds=0.5, in_seconds_most=0.5)
    others: list[Any] = [FakeLoader(share=0.4) for _ in range(30)]  # like other ranks: they dominate the mean

    def all_wait(share: float) -> None:
        for other in others:
            other.share = share

    with fleet_of(pipeline, 1, 5, scaling=scaling) as fleet:
        for other in others:
            fleet.watch(other)
        fleet.wait(timeout=PATIENCE_S)
        with fleet.loader(0, 1, output="numpy") as loader:

            def batches() -> Iterator[dict[str, Any]]:
                for step, batch in enumerate(epochs(loader)):
                    if step == 20:
                        all_wait(1.0)
                        until("five workers", lambda: len(serving(fleet)) == 5)
                    if step == 60:
                        all_wait(0.0)
                        until("two workers", lambda: len(serving(fleet)) <= 2)
                        all_wait(0.4)
                    yield batch

            assert digest(batches()) == quiet
            assert loader.ledger()["exact"]


def train(config: dict[str, Any]) -> dict[str, Any]:
    """Returns each rank's digest, by rank, for the fleet's loader or for one that finds the fleet by name."""
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    if config["found"]:
        loader = config["pipeline"].loader(rank, world_size, output="numpy", workers="ray")
    else:
        loader = config["fleet"].loader(rank, world_size, output="numpy")
    told = digest(epochs(loader))
    everybody: list[Any] = [None] * world_size
    dist.all_gather_object(everybody, told)
    return {"digests": everybody}


@pytest.mark.parametrize("found", [False, True])
def test_in_ray_train(nodes: list[Any], pipeline: fs.Pipeline, tmp_path: Path, found: bool) -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    expected = []
    for rank in range(2):
        with pipeline.loader(rank, 2, output="numpy") as loader:
            expected.append(digest(epochs(loader)))
    with fleet_of(pipeline, 2) as fleet:
        fleet.wait(timeout=PATIENCE_S)
        result = TorchTrainer(
            train,
            train_loop_config={"fleet": fleet, "pipeline": pipeline, "found": found},
            scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"trainer": 1}),
            run_config=ray.train.RunConfig(name="run", storage_path=str(tmp_path / "storage")),
        ).fit()
        assert result.return_value["digests"] == expected
        until("their counts", lambda: sum(w["samples"] for w in serving(fleet)) >= 200 * EPOCHS)
