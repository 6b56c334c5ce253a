"""Ray's autoscaler adds nodes when the fleet requests workers, and removes them when the fleet releases them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feedstock as fs

pytest.importorskip("torch")
pytest.importorskip("ray")

import psutil
import ray
import test_ray_fleet as fakes
from programs.ray_cluster import PATIENCE_S, STORE_BYTES, SYSTEM
from ray.cluster_utils import Cluster
from test_ray_fleet import QUICK, FakeLoader, FakeNative, serving, until, workers_by_name

from feedstock.ray import WORKER_RESOURCE, Fleet, Scaling

PROVIDER = {
    "type": "fake_multinode",
    "use_node_id_as_ip": True,
    "disable_node_updaters": True,
    "disable_launch_config_check": True,
    "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
}
# Ray's AutoscalingCluster would do the same, but ends all of the machine's Ray processes before and after.
CONFIG = {
    "cluster_name": "fake",
    "max_workers": 3,
    "idle_timeout_minutes": 0.05,
    "upscaling_speed": 1.0,
    "auth": {},
    "docker": {},
    "setup_commands": [],
    "initialization_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
    "file_mounts": {},
    "cluster_synced_files": [],
    "file_mounts_sync_continuously": False,
    "rsync_exclude": [],
    "rsync_filter": [],
    "head_node_type": "ray.head.default",
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "ingest": {
            "resources": {"CPU": 1, WORKER_RESOURCE: 1, "object_store_memory": STORE_BYTES},
            "node_config": {},
            "min_workers": 0,
            "max_workers": 3,
        },
    },
}


@pytest.fixture
def autoscaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts a head without room for workers, to which the autoscaler adds up to three nodes."""
    folder = tempfile.mkdtemp(prefix="fs-ray-")  # short: the paths of unix sockets end at 107 bytes
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    config = tmp_path / "autoscaling.json"
    provider = {**PROVIDER, "gcs_address": f"{ray.util.get_node_ip_address()}:{port}"}
    config.write_text(json.dumps({**CONFIG, "provider": provider}))
    path = filter(None, [str(Path(fs.__file__).parents[1]), os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.setenv("RAY_FAKE_CLUSTER", "1")
    monkeypatch.setenv("AUTOSCALER_UPDATE_INTERVAL_S", "1")
    cluster = Cluster(
        initialize_head=True,
        connect=True,
        head_node_args={
            "num_cpus": 1,
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
            "gcs_server_port": port,
            "autoscaling_config": str(config),
            "_system_config": SYSTEM,
        },
    )
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


def end_all(folder: str) -> None:
    """Ends the nodes that the autoscaler started: the processes that name this cluster's folder."""
    for process in psutil.process_iter():
        if folder in " ".join(command_line(process)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def command_line(process: psutil.Process) -> list[str]:
    try:
        line: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return line


def nodes() -> list[dict[str, Any]]:
    """Returns the nodes that are alive, without the head."""
    return [n for n in ray.nodes() if n["Alive"] and WORKER_RESOURCE in n["Resources"]]


def test_nodes_come_with_the_workers_and_go_with_them(autoscaled: None, imagenet: Path) -> None:
    ray.cloudpickle.register_pickle_by_value(fakes)
    pipeline = fs.Dataset(imagenet, columns=["label"]).batch(16)
    assert nodes() == []
    fleet = Fleet(
        pipeline,
        1,
        3,
        cpus_per_worker=1,
        resources={WORKER_RESOURCE: 1},
        scaling=Scaling(out_seconds=1.0, in_seconds=3.0),
        _native=FakeNative(),
        _timing=QUICK,
    )
    with fleet:
        fleet.wait(timeout=PATIENCE_S)
        assert len(nodes()) == 1
        loader: Any = FakeLoader(share=0.6)
        fleet.watch(loader)
        until("three nodes", lambda: len(nodes()) == len(serving(fleet)) == 3)
        loader.share = 0.0
        until("one worker", lambda: len(fleet.status()["workers"]) == 1)
        until("one node", lambda: len(nodes()) == 1)
        assert len(serving(fleet)) == 1
    until("no worker", lambda: not workers_by_name())
    until("no node", lambda: not nodes())
