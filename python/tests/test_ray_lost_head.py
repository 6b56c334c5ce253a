"""Ray's head is lost: with the driver elsewhere, and with the driver on it. All processes of a node are killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import debian
import psutil
import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from programs.ray_cluster import Attempt, attempts, deliveries
from programs.ray_nodes import HEAD, Nodes, Process, until

from feedstock.ray import WORKER_RESOURCE

SAMPLES, EPOCHS = 200, 4
OTHERS = ("127.0.0.3", "127.0.0.4")


@pytest.fixture
def start() -> Iterator[Callable[..., Nodes]]:
    """Returns a function that starts a head, and two nodes with room for a rank and two workers each."""
    started: list[Nodes] = []

    def start(*, redis: bool, reconnect_seconds: int) -> Nodes:
        if redis:
            debian.install("Redis", ["redis-server"], ["redis-server"])
        started.append(Nodes(redis=redis, reconnect_seconds=reconnect_seconds))
        return started[-1]

    yield start
    for nodes in started:
        nodes.close()


class Job:
    """A driver on one of the nodes."""

    def __init__(self, nodes: Nodes, node: str, data: Path, folder: Path) -> None:
        self.folder, self.status = folder, folder / "fleet.json"
        self.status.unlink(missing_ok=True)
        arguments = [nodes.address, node, str(data), str(folder)]
        nodes.environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
        self.driver = nodes.run("driver", [sys.executable, "-m", "programs.lost_head", *arguments])

    def until_step(self, step: int, *processes: Process) -> None:
        """Waits until both ranks of the newest group have started this step."""

        def there() -> bool:
            newest = attempts(self.folder)[-2:]
            return len(newest) == 2 and all(
                any(line["step"] >= step for line in rank.steps) for rank in newest
            )

        until(f"step {step}", there, self.driver, *processes)

    def until_registered(self, step: int) -> None:
        """Waits until the checkpoint of this step is registered."""
        path = self.folder / "storage" / "run" / "checkpoint_manager_snapshot.json"

        def there() -> bool:
            if not path.exists():
                return False
            known = json.loads(path.read_text())["latest_checkpoint_result"]
            return known is not None and known["metrics"]["step"] >= step

        until(f"the checkpoint of step {step}", there, self.driver)

    def serving(self) -> dict[int, int]:
        """Returns the number and the process of each worker that serves."""
        if not self.status.exists():
            return {}
        workers = json.loads(self.status.read_text())["workers"]
        return {worker["number"]: worker["pid"] for worker in workers if worker["phase"] == "serving"}

    def assert_every_sample_committed_once(self) -> list[Attempt]:
        assert self.driver.wait() == 0, self.driver.output()
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        assert result["seen"] == [EPOCHS] * SAMPLES
        return attempts(self.folder)


def test_ranks_and_workers_go_on_while_a_head_with_redis_is_replaced(
    start: Any, imagenet: Path, tmp_path: Path
) -> None:
    """The driver, and with it both controllers, are on another node. A worker that dies afterwards is replaced."""
    nodes: Nodes = start(redis=True, reconnect_seconds=300)
    head = nodes.start_head()
    others = nodes.start_others(*OTHERS, trainer=1, **{WORKER_RESOURCE: 2})
    limit = tmp_path / "limit"
    limit.write_text("5")
    job = Job(nodes, OTHERS[0], imagenet, tmp_path)
    job.until_step(5)
    before = until("two workers", lambda: len(job.serving()) == 2 and job.serving(), job.driver)
    on_the_drivers_node = others[0].descendants()
    assert json.loads(job.status.read_text())["pid"] in on_the_drivers_node, "the fleet's controller"
    assert any("TrainController" in command for command in on_the_drivers_node.values())
    head.kill()
    limit.write_text("17")
    job.until_step(17)  # rows come from workers only: local="never"
    nodes.start_head()
    lost, stays = sorted(before)
    os.kill(before[lost], signal.SIGKILL)
    after = until(
        "a replacement", lambda: len(job.serving().keys() - {lost}) == 2 and job.serving(), job.driver
    )
    assert after[stays] == before[stays]
    limit.write_text("1000")
    found = job.assert_every_sample_committed_once()
    assert len(found) == 2, "Ray Train started the ranks again"
    assert set(deliveries(found).values()) == {EPOCHS}


@pytest.mark.parametrize("redis", [False, True])
def test_the_resubmitted_job_goes_on_after_a_head_is_lost_with_the_driver(
    start: Any, imagenet: Path, tmp_path: Path, redis: bool
) -> None:
    """Without Redis, the other nodes end and start anew. With it they stay, and only the lost job's processes end."""
    nodes: Nodes = start(redis=redis, reconnect_seconds=300 if redis else 5)
    head = nodes.start_head()
    others = nodes.start_others(*OTHERS, trainer=1, **{WORKER_RESOURCE: 2})
    limit = tmp_path / "limit"
    limit.write_text("14")
    job = Job(nodes, HEAD, imagenet, tmp_path)
    job.until_step(14)
    job.until_registered(12)
    workers = until("two workers", lambda: len(job.serving()) == 2 and job.serving(), job.driver)
    lost = [*workers.values(), *(attempt.start["pid"] for attempt in attempts(tmp_path))]
    assert len(lost) == 4
    head.kill()
    job.driver.kill()
    if redis:
        nodes.start_head()
    until("the end of the lost job's processes", lambda: not any(map(psutil.pid_exists, lost)))
    if not redis:
        until("the end of the other nodes", lambda: not any(node.runs() for node in others))
        nodes.start_head()
        others = nodes.start_others(*OTHERS, trainer=1, **{WORKER_RESOURCE: 2})
    limit.write_text("1000")
    again = Job(nodes, HEAD, imagenet, tmp_path)
    found = again.assert_every_sample_committed_once()
    assert all(node.runs() for node in others)
    resumed = [attempt.start["resumed"] for attempt in found]
    assert resumed[:2] == [None, None]
    assert [(state["epoch"], state["position"]) for state in resumed[2:]] == [(1, 40)] * 2
