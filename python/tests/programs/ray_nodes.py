"""A Ray cluster of `ray start` commands on one machine, whose head can be lost and started again.

Each node has an address of the loopback network, and its processes can be killed together, as when its machine is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

import feedstock as fs

STORE_BYTES = 80 * 2**20  # only pickled functions pass through it
PATIENCE_S = 600.0  # enough for an overloaded machine; only failing tests wait this long
HEAD = "127.0.0.2"

#: Ray gives up if a node needs more than 30 s to start, which happens on a busy machine.
ATTEMPTS = 5
STARTED = "Ray runtime started"


def until(what: str, condition: Callable[[], Any], *processes: Process) -> Any:
    """Waits for ``condition``, and fails if one of ``processes`` ends before."""
    start = time.monotonic()
    while not (value := condition()):
        for process in processes:
            assert process.runs(), f"{process.name} ended before there was {what}:\n{process.output()}"
        assert time.monotonic() - start < PATIENCE_S, f"{what}: not within {PATIENCE_S:.0f} s"
        time.sleep(0.1)
    return value


class Process:
    """A process with all that it starts, and its output in a file."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self.name, self._log = name, folder / f"{name}-{time.time_ns()}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def runs(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        return self._process.wait(PATIENCE_S)

    def descendants(self) -> dict[int, str]:
        """Returns the command line of every process that this one and its descendants have started."""
        found = {}
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found[process.pid] = " ".join(process.cmdline())
        return found

    def kill(self) -> None:
        """Kills the process and its descendants at once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process.pid)
            process.suspend()  # starts nothing new
            for one in [*process.children(recursive=True), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        self._process.wait()


class Nodes:
    """The cluster's processes. ``redis``: the head keeps its state in a Redis, and a new head finds it there."""

    def __init__(self, *, redis: bool, reconnect_seconds: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fs-ray-"))  # short: paths of sockets end at 107 bytes
        self.port = free_port()
        self.address = f"{HEAD}:{self.port}"
        package = str(Path(fs.__file__).parents[1])
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
            "OMP_NUM_THREADS": "1",
            "RAY_TMPDIR": str(self.folder),
            "RAY_AUTH_MODE": "disabled",  # the test and the machine have no token
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # a busy machine would run nothing else first
            "RAY_memory_monitor_refresh_ms": "0",  # tests must not depend on the machine's free memory
            "RAY_health_check_initial_delay_ms": "2000",
            "RAY_health_check_period_ms": "1000",
            "RAY_gcs_rpc_server_reconnect_timeout_s": str(reconnect_seconds),
        }
        self._started: list[Process] = []
        if redis:
            store = free_port()
            options = ["--port", str(store), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)]
            self.run("redis", ["redis-server", *options])
            until("Redis", lambda: answers("127.0.0.1", store))
            self.environment["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{store}"

    def run(self, name: str, command: list[str]) -> Process:
        """Starts a process that ends with the cluster."""
        self._started.append(Process(name, command, self.environment, self.folder))
        return self._started[-1]

    def start_head(self) -> Process:
        """Starts the head, which runs no rank and no worker. It may replace one that was lost."""
        assert not answers(HEAD, self.port), "the former head is alive"
        # Ray refuses to start a head where it finds processes of such a cluster, which are the other nodes here.
        (self.folder / "ray" / "ray_current_cluster").unlink(missing_ok=True)
        return self._start(HEAD, ["--head", f"--port={self.port}", "--include-dashboard=false"], 1, {})

    def start_others(self, *addresses: str, **resources: int) -> list[Process]:
        """Starts other nodes, each with these logical resources."""
        with ThreadPoolExecutor() as pool:
            where = [f"--address={self.address}"]
            return list(pool.map(lambda address: self._start(address, where, 4, resources), addresses))

    def _start(self, address: str, where: list[str], cpus: int, resources: dict[str, int]) -> Process:
        options = [
            f"--node-ip-address={address}",
            f"--num-cpus={cpus}",
            f"--resources={json.dumps(resources)}",
        ]
        options += [f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats", "--block"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *where, *options]
        for _ in range(ATTEMPTS):
            node = self.run(address, command)
            until(f"node {address}", lambda node=node: STARTED in node.output() or not node.runs())
            if node.runs():
                return node
        raise AssertionError(f"node {address} does not start:\n{node.output()}")

    def close(self) -> None:
        for process in reversed(self._started):
            process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


def answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True
