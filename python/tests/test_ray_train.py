"""Ray Train: workers are killed, nodes join and leave, and every committed sample was trained on exactly once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import feedstock as fs

pytest.importorskip("torch")
pytest.importorskip("ray")

from programs.ray_cluster import Attempt, RayCluster, Run, attempts, deliveries, fit
from programs.ray_loops import beside_ray_data, ddp, fsdp2

SAMPLES, EPOCHS = 200, 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def pipeline(imagenet: Path) -> fs.Pipeline:
    """Returns a pipeline of 10 steps per epoch, the same for any number of ranks."""
    pictures = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.random_resized_crop(16))
    return pictures.shuffle(seed=7, window=64).batch(global_batch_size=20).options(threads=1)


def assert_every_sample_committed_once(result: Any, found: list[Attempt]) -> None:
    """Checks the count that is saved and restored with the weights, so that it only has committed samples."""
    assert result.return_value["seen"] == [EPOCHS] * SAMPLES
    assert max(deliveries(found).values()) > EPOCHS, (
        "nothing was lost and repeated, so the fault tested nothing"
    )


def groups(found: list[Attempt]) -> list[list[Attempt]]:
    """Returns workers by the group in which they started. Each group has a rank once."""
    made: list[list[Attempt]] = []
    for attempt in found:
        if not made or attempt.start["rank"] in {other.start["rank"] for other in made[-1]}:
            made.append([])
        made[-1].append(attempt)
    return made


def test_ddp_worker_killed_in_mid_epoch(cluster: RayCluster, pipeline: fs.Pipeline, tmp_path: Path) -> None:
    result = fit(ddp, pipeline, tmp_path, epochs=EPOCHS, every=3, kill=[1, 7])
    found = attempts(tmp_path)
    _, second = groups(found)
    assert [a.start["loader"] for a in sorted(second, key=lambda a: a.start["rank"])] == [[0, 2], [1, 2]]
    # The checkpoint after 3 steps is registered, and also the one after 6 if Ray's controller was quick. Both are in
    # mid-epoch.
    assert second[0].start["resumed"]["position"] in (60, 120)
    assert_every_sample_committed_once(result, found)


def test_fsdp2_worker_killed_while_it_writes_a_checkpoint(
    cluster: RayCluster, pipeline: fs.Pipeline, tmp_path: Path
) -> None:
    """A checkpoint's directory on disk is not a registered checkpoint: the run resumes from the previous one."""
    result = fit(fsdp2, pipeline, tmp_path, epochs=EPOCHS, every=3, kill_upload=[1, 6])
    found = attempts(tmp_path)
    first, second = groups(found)
    killed = next(attempt for attempt in first if attempt.start["rank"] == 1)
    assert killed.steps[-1]["step"] == 5  # the sixth; its checkpoint was the last thing it did
    assert {attempt.start["resumed"]["position"] for attempt in second} == {60}  # after 3 steps, not 6
    storage = tmp_path / "storage" / "run"
    known = json.loads((storage / "checkpoint_manager_snapshot.json").read_text())["checkpoint_results"]
    on_disk = {path.name for path in storage.glob("checkpoint_2*")}
    unregistered = on_disk - {entry["checkpoint_dir_name"] for entry in known}
    assert len(unregistered) == 1, "the directory of the checkpoint that was never registered"
    assert_every_sample_committed_once(result, found)


def test_elastic_training_with_a_node_lost_and_another_gained(
    cluster: RayCluster, pipeline: fs.Pipeline, tmp_path: Path
) -> None:
    """Runs num_workers=(1, 3) on a node with room for one. A node with room for two leaves, and another joins."""

    def reached(world_size: int, step: int) -> bool:
        """Whether the newest worker's group has this size and has started this step."""
        newest = attempts(tmp_path)[-1:]
        return any(
            worker.start["world_size"] == world_size and any(line["step"] >= step for line in worker.steps)
            for worker in newest
        )

    allowed = tmp_path / "limit"
    allowed.write_text("5")  # the last step of the first group before its node is lost
    nodes = [cluster.add_node(elastic=1), cluster.add_node(elastic=2)]
    run = Run(ddp, pipeline, tmp_path, workers=(1, 3), resource="elastic", epochs=EPOCHS, every=3)
    try:
        run.until("three workers at step 5", lambda: reached(3, 5))
        registered = tmp_path / "storage" / "run" / "checkpoint_manager_snapshot.json"
        run.until("a checkpoint to go on from", registered.exists)
        cluster.remove_node(nodes.pop())
        run.until("one worker", lambda: reached(1, 3))
        allowed.write_text("11")
        run.until("one worker at step 11, in the second epoch", lambda: reached(1, 11))
        nodes.append(cluster.add_node(elastic=2))
        run.until("three workers again", lambda: reached(3, 9))
        allowed.write_text("1000")
        result = run.result()
    finally:
        allowed.write_text("1000")
        for node in nodes:
            cluster.remove_node(node)
    found = attempts(tmp_path)
    sizes = [size for size, _ in groupby(attempt.start["world_size"] for attempt in found)]
    assert sizes == [3, 1, 3]  # a loaded machine may start one of them twice
    for attempt in found:
        assert attempt.start["loader"] == [attempt.start["rank"], attempt.start["world_size"]]
    later = [attempt.start["resumed"] for attempt in found[3:]]
    assert all(place["position"] > 0 for place in later), "a restart began the epoch from its start"
    assert_every_sample_committed_once(result, found)


def test_a_checkpoint_before_a_node_is_taken(
    cluster: RayCluster, pipeline: fs.Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no other checkpoints, so without the one that the notice leads to, training would begin again."""
    monkeypatch.setenv("RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S", "0.2")
    limit = tmp_path / "limit"
    limit.write_text("8")
    nodes = [cluster.add_node(spot=1) for _ in range(2)]
    run = Run(ddp, pipeline, tmp_path, resource="spot", epochs=EPOCHS, every=1000, notice_at=5)
    try:
        run.until(
            "two ranks at step 5",
            lambda: [len(attempt.steps) for attempt in attempts(tmp_path)] == [6, 6],
        )
        cluster.announce_loss(nodes[1])
        registered = tmp_path / "storage" / "run" / "checkpoint_manager_snapshot.json"
        run.until("a checkpoint", registered.exists)
        cluster.remove_node(nodes.pop())
        nodes.append(cluster.add_node(spot=1))
        limit.write_text("1000")
        result = run.result()
    finally:
        limit.write_text("1000")
        for node in nodes:
            cluster.remove_node(node)
    found = attempts(tmp_path)
    assert [attempt.start["resumed"] is None for attempt in found] == [True, True, False, False]
    assert {attempt.start["resumed"]["position"] for attempt in found[2:]} == {120}
    assert_every_sample_committed_once(result, found)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_lightning_under_rays_strategies(
    cluster: RayCluster, pipeline: fs.Pipeline, tmp_path: Path, strategy: str
) -> None:
    """Trains two epochs. A worker is killed in the middle of the first, and training resumes there."""
    pytest.importorskip("lightning")
    import ray
    from programs import ray_lightning

    ray.cloudpickle.register_pickle_by_value(ray_lightning)
    result = fit(
        ray_lightning.fit, pipeline, tmp_path, strategy=strategy, epochs=EPOCHS, every=3, kill=[1, 7]
    )
    found = attempts(tmp_path)
    assert len(groups(found)) == 2
    assert result.return_value["steps"] == 20
    assert_every_sample_committed_once(result, found)


def test_ray_data_beside_a_pipeline_is_left_to_ray(
    cluster: RayCluster, pipeline: fs.Pipeline, tmp_path: Path
) -> None:
    import ray.data

    result = fit(beside_ray_data, pipeline, tmp_path, others={"rows": ray.data.range(32)})
    assert sorted(result.return_value["train"]) == list(range(SAMPLES))
    assert sorted(result.return_value["rows"]) == list(range(32))
