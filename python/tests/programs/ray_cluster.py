"""A real Ray cluster on one machine: a head, and nodes that join and leave. Each is a separate set of processes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Ray reads these when it starts its processes and controllers, so they are set before `import ray`.
os.environ.update(
    RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.2",  # how soon a death is detected and a report registered
    RAY_TRAIN_METRICS_ENABLED="0",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_worker_niceness="0",  # Ray's 15 would starve ranks on a busy machine
    RAY_memory_monitor_refresh_ms="0",  # tests must not depend on the machine's free memory
    OMP_NUM_THREADS="1",
)

import ray
import ray.train
import ray.train.torch
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

import feedstock as fs
from feedstock.ray import DataConfig

from . import ray_loops

STORE_BYTES = 80 * 2**20  # only pickled functions pass through it
PATIENCE_S = 900.0  # enough for an overloaded machine; only failing tests wait this long


SYSTEM = {
    # how soon a lost node is detected
    "health_check_initial_delay_ms": 2000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 5,
    "health_check_timeout_ms": 5000,
    "prestart_worker_first_driver": False,  # one process per logical CPU, most of which are not needed
}


class RayCluster:
    """A cluster whose head has room for two trainers and more logical CPUs than the machine."""

    def __init__(self) -> None:
        assert not ray.is_initialized(), (
            "an earlier test left Ray running: its cluster would get this one's actors"
        )
        # short: the paths of unix sockets end at 107 bytes
        self.folder = Path(tempfile.mkdtemp(prefix="fs-ray-"))
        os.environ["RAY_TMPDIR"] = str(
            self.folder
        )  # of sessions, and of the address that other clusters would find
        package = str(Path(fs.__file__).parents[1])
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self.cluster = Cluster(
            initialize_head=True,
            connect=True,
            head_node_args={
                "num_cpus": 4,
                "object_store_memory": STORE_BYTES,
                "resources": {"trainer": 2},
                "include_dashboard": False,
                "_system_config": SYSTEM,
            },
        )

    def add_node(self, *, labels: Mapping[str, str] | None = None, **resources: float) -> Any:
        """Adds a node with these logical resources and labels."""
        node = self.cluster.add_node(
            wait=False,
            num_cpus=1,
            object_store_memory=STORE_BYTES,
            resources=resources,
            labels=dict(labels or {}),
        )
        self.cluster._wait_for_node(node, timeout=PATIENCE_S)  # add_node itself gives up after 30 s
        return node

    def remove_node(self, node: Any) -> None:
        """Kills all processes of a node, as when its machine is lost."""
        self.cluster.remove_node(node, allow_graceful=False)

    def announce_loss(self, node: Any) -> None:
        """Announces that a node will be taken in ten minutes, as a cloud does for a spot node."""
        client = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
        notice = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        in_ten_minutes = time.time_ns() // 1_000_000 + 600_000
        accepted, why = client.drain_node(node.node_id, notice, "a spot notice", in_ten_minutes)
        assert accepted, why

    def close(self) -> None:
        """Ends all of Ray's processes and removes what they wrote."""
        ray.shutdown()
        self.cluster.shutdown()
        del os.environ["RAY_TMPDIR"]
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class Attempt:
    """One worker's journal."""

    start: dict[str, Any]
    steps: list[dict[str, Any]]


def attempts(folder: Path) -> list[Attempt]:
    """Returns all workers' journals of a run, in the order in which they started."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")]
        if lines:
            found.append(Attempt(lines[0], lines[1:]))
    return sorted(found, key=lambda attempt: attempt.start["start"])


def deliveries(found: list[Attempt]) -> Counter[int]:
    """Returns how often each sample entered a step of any attempt, committed or not."""
    return Counter(sample for attempt in found for step in attempt.steps for sample in step["ids"])


def fit(
    loop: Callable[[dict[str, Any]], dict[str, Any]],
    pipeline: fs.Pipeline,
    folder: Path,
    *,
    workers: Any = 2,
    resource: str = "trainer",
    resize_s: float = 1.0,
    others: Mapping[str, Any] | None = None,
    data_config: DataConfig | None = None,
    **config: Any,
) -> ray.train.Result:
    """Trains with Ray Train and writes journals to `folder`. `others` are data sets that are not pipelines."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer = ray.train.torch.TorchTrainer(
        loop,
        train_loop_config={"folder": str(folder), "samples": len(pipeline.dataset), **config},
        scaling_config=ray.train.ScalingConfig(
            num_workers=workers,
            resources_per_worker={resource: 1},
            elastic_resize_monitor_interval_s=resize_s,
        ),
        run_config=ray.train.RunConfig(
            name="run",
            storage_path=str(folder / "storage"),
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
        datasets={"train": pipeline, **(others or {})},
        dataset_config=data_config or DataConfig(),
    )
    return trainer.fit()


class Run:
    """A `fit` in another thread. The test keeps the main thread, since Ray's nodes can be added only from there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.future = self.pool.submit(fit, *args, **kwargs)

    def until(self, what: str, condition: Callable[[], Any]) -> None:
        """Waits for `condition`, and fails if the run ends before."""
        start = time.monotonic()
        while not condition():
            if self.future.done():
                raise AssertionError(f"the run ended before there was {what}: {self.future.exception()}")
            if time.monotonic() - start > PATIENCE_S:
                raise TimeoutError(f"{what}: not within {PATIENCE_S:.0f} s")
            time.sleep(0.1)

    def result(self) -> ray.train.Result:
        """Waits for the run's end."""
        return self.future.result(PATIENCE_S)


ray.cloudpickle.register_pickle_by_value(ray_loops)
