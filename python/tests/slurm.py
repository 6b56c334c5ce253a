"""A Slurm cluster on this machine, from Debian's packages: a controller, and several nodes that share the machine.

Everything is in one folder and on free ports: keys, sockets, state and logs. A Slurm that the machine already runs is
not touched.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import debian
import pytest

PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
PATIENCE_S = 300.0  # only a busy machine and failing tests wait this long


def install() -> None:
    """Installs Slurm, or skips the test if that is not possible."""
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons need root here")
    debian.install("Slurm", PACKAGES, PROGRAMS)


def wait_for(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not after {patience_s:.0f} s"
        time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(closing(socket.socket())) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Cluster:
    """A running cluster. `partitions` gives each partition's number of nodes: {"cpu": 2} makes cpu1 and cpu2."""

    def __init__(self, folder: Path, partitions: Mapping[str, int], cpus: int = 4) -> None:
        self.folder = folder
        self.nodes = {name: [f"{name}{i + 1}" for i in range(count)] for name, count in partitions.items()}
        self._daemons: list[subprocess.Popen[bytes]] = []
        names = [node for nodes in self.nodes.values() for node in nodes]
        controller, *ports = _free_ports(1 + len(names))
        self._configure(controller, dict(zip(names, ports, strict=True)), cpus)
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        try:
            self._start()
        except BaseException:
            self._end_daemons()
            raise

    def _configure(self, controller: int, ports: Mapping[str, int], cpus: int) -> None:
        for name in ("state", *(f"spool-{node}" for node in ports)):
            (self.folder / name).mkdir(parents=True)
        lines = f"""
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge.socket
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool-%n
SlurmdPidFile={self.folder}/%n.pid
SlurmctldPidFile={self.folder}/slurmctld.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=0
KillWait=120
"""
        lines += "".join(
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=8192\n"
            for node, port in ports.items()
        )
        lines += "".join(
            f"PartitionName={name} Nodes={','.join(nodes)} State=UP\n" for name, nodes in self.nodes.items()
        )
        (self.folder / "slurm.conf").write_text(lines)
        (self.folder / "munge.key").write_bytes(os.urandom(64))
        (self.folder / "munge.key").chmod(0o600)

    def _start(self) -> None:
        munge = {
            "key-file": "munge.key",
            "socket": "munge.socket",
            "pid-file": "munge.pid",
            "seed-file": "munge.seed",
        }
        places = [f"--{option}={self.folder / file}" for option, file in munge.items()]
        self._daemon("munged", "munged", "--foreground", "--force", *places)
        wait_for((self.folder / "munge.socket").exists, "munged's socket")
        config = str(self.folder / "slurm.conf")
        self._daemon("slurmctld", "slurmctld", "-D", "-f", config)
        for nodes in self.nodes.values():
            for node in nodes:
                self._daemon(node, "slurmd", "-D", "-f", config, "-N", node)
        count = sum(map(len, self.nodes.values()))
        wait_for(
            lambda: self.output("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * count,
            f"{count} idle nodes",
        )

    def _daemon(self, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            )

    def output(self, *command: str) -> str:
        """Returns what a command of Slurm prints; nothing if it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        return done.stdout if done.returncode == 0 else ""

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            command,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}\n{self.logs()}"
        return done.stdout

    def state(self, job: str) -> str:
        """Returns the state of a job's first component, for example RUNNING."""
        shown = self.output("scontrol", "show", "job", "-o", job)
        return shown.partition("JobState=")[2].partition(" ")[0]

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        """Ends all jobs and daemons. Their state is not needed again, so nothing is left to save."""
        try:
            self.output("scancel", "--full", "--user=root")
            wait_for(lambda: not self.output("squeue", "-h"), "the jobs' end")
        finally:
            self._end_daemons()

    def _end_daemons(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()
