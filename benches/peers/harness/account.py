"""Measures the cost of a contender: CPU time, memory, processes and threads of all that it starts.

A control group holds them if one can be created (version 1: ``cpuacct`` and ``pids`` or ``memory``; version
2). Otherwise the process tree is summed. This process is then the reaper of orphans, so that none is missed.

A thread samples CPU time, processes and threads every 100 ms. Proportional memory (PSS: a shared page counts
once in total) is expensive to read, so it is read only as often as a given share of one core allows (1 %
during rates). It is stored in two parts. The contender's own memory (anonymous pages and shared memory) is
the one that is judged. Pages of mapped files are the kernel's page cache, and are freed when memory is
needed.

For the machine, it reports how much CPU time others had: other processes, and other guests (steal).
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

EVERY_S = 0.1
PR_SET_CHILD_SUBREAPER = 36
TICKS = os.sysconf("SC_CLK_TCK")
CGROUPS = Path("/sys/fs/cgroup")
REMOVAL_TRIES = 100


@dataclass(frozen=True)
class Memory:
    """Proportional memory: the contender's own, and pages of mapped files."""

    own_bytes: int
    file_bytes: int


@dataclass(frozen=True)
class Sample:
    at: float
    cpu_s: float
    memory: Memory | None
    processes: int
    threads: int


class Group:
    """A separate control group for one contender. Nothing of it remains after ``end``."""

    SCOPE = "control group"

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._usage = folders[0] / "cpuacct.usage"

    @classmethod
    def make(cls, name: str) -> Group | None:
        """Returns None if this process may not create one, or the kernel has none that count CPU time."""
        parents = [CGROUPS / "cpuacct", CGROUPS / "memory"]
        if (CGROUPS / "cgroup.controllers").is_file():
            parents = [CGROUPS]
        made = []
        try:
            for parent in parents:
                if parent.is_dir():
                    (parent / name).mkdir()
                    made.append(parent / name)
        except OSError:
            pass
        if not made or not any((made[0] / file).is_file() for file in ("cpuacct.usage", "cpu.stat")):
            for folder in made:
                folder.rmdir()
            return None
        return cls(made)

    def adopt(self) -> None:
        """Moves the calling process into the group, before it becomes the contender."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def cpu_s(self) -> float:
        if self._usage.is_file():
            return int(self._usage.read_text()) / 1e9
        stat = dict(line.split() for line in (self._folders[0] / "cpu.stat").read_text().splitlines())
        return int(stat["usage_usec"]) / 1e6

    def processes(self) -> list[int]:
        return [int(line) for line in (self._folders[0] / "cgroup.procs").read_text().split()]

    def remove(self) -> None:
        for folder in self._folders:
            for _ in range(REMOVAL_TRIES):
                try:
                    folder.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)  # the kernel takes a moment


class Tree:
    """The descendants of one process, found by their parents."""

    SCOPE = "process tree"

    def __init__(self, root: int) -> None:
        self._root = root
        self._last: dict[int, float] = {}
        self._ended_s = 0.0
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def processes(self) -> list[int]:
        parents: dict[int, list[int]] = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError):
                    parents.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
        found, left = (
            [],
            [self._root, *(child for child in parents.get(os.getpid(), []) if child in self._last)],
        )
        while left:
            process = left.pop()
            if process not in found:
                found.append(process)
                left.extend(parents.get(process, []))
        return found

    def cpu_s(self) -> float:
        """Returns the CPU seconds of living processes, and of those that were seen and have ended."""
        now: dict[int, float] = {}
        for process in self.processes():
            with contextlib.suppress(OSError, ValueError):
                fields = _stat(process)
                now[process] = (int(fields[11]) + int(fields[12])) / TICKS
        self._ended_s += sum(spent for process, spent in self._last.items() if process not in now)
        self._last = now
        return self._ended_s + sum(now.values())

    def remove(self) -> None:
        pass


def _stat(process: int) -> list[str]:
    """Returns the fields of /proc/PID/stat after the name: state, parent …"""
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()


def _threads(process: int) -> int:
    with contextlib.suppress(OSError):
        return int(_stat(process)[17])
    return 0


def parse_rollup(text: str) -> Memory:
    """Parses ``/proc/PID/smaps_rollup``. Shared memory (of DataLoaders, of Ray) counts as the contender's
    own."""
    found = {"Pss_Anon": 0, "Pss_Shmem": 0, "Pss_File": 0}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0]) * 1024
    return Memory(found["Pss_Anon"] + found["Pss_Shmem"], found["Pss_File"])


def _memory(process: int) -> Memory:
    with contextlib.suppress(OSError):
        return parse_rollup(Path(f"/proc/{process}/smaps_rollup").read_text())
    return Memory(0, 0)


@dataclass(frozen=True)
class Machine:
    """The machine's CPU seconds since its start: the time that it worked, and the time that other guests took
    (steal)."""

    at: float
    load: float
    busy_s: float
    stolen_s: float

    @classmethod
    def now(cls) -> Machine:
        return cls.read(time.monotonic(), os.getloadavg()[0], Path("/proc/stat").read_text())

    @classmethod
    def read(cls, at: float, load: float, stat: str) -> Machine:
        """Parses the text of ``/proc/stat``: user, nice, system, idle, iowait, irq, softirq, steal …"""
        ticks = [int(field) for field in stat.splitlines()[0].split()[1:9]]
        user, nice, system, _, _, irq, softirq, steal = ticks
        return cls(at, load, (user + nice + system + irq + softirq) / TICKS, steal / TICKS)


def neighbours(before: Machine, after: Machine, own_s: float, cores: int) -> dict[str, float]:
    """Returns the load of the machine during a run: load average before and after, the cores that other
    processes used, and the share of the machine's time that was stolen. ``own_s`` is the CPU time of the
    contender, its server and this harness."""
    wall_s = max(after.at - before.at, 1e-9)
    others_s = max(0.0, after.busy_s - before.busy_s - own_s)
    return {
        "load_before": before.load,
        "load_after": after.load,
        "others_cores": others_s / wall_s,
        "steal_share": (after.stolen_s - before.stolen_s) / (wall_s * cores),
    }


class Account:
    """Samples until it is closed, and then reports the values at any moment."""

    def __init__(self, source: Group | Tree, pss_share: float) -> None:
        self._source, self._pss_share = source, pss_share
        self.scope = source.SCOPE
        self.samples: list[Sample] = []
        self._pss_due = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(EVERY_S):
            self._take()

    def _take(self) -> None:
        processes = self._source.processes()
        begun = time.monotonic()
        memory: Memory | None = None
        if begun >= self._pss_due:
            cpu = time.thread_time()
            parts = [_memory(process) for process in processes]
            own, files = sum(part.own_bytes for part in parts), sum(part.file_bytes for part in parts)
            memory = Memory(own, files) if own else None
            self._pss_due = begun + (time.thread_time() - cpu) / self._pss_share
        at = time.monotonic()
        threads = sum(map(_threads, processes))
        self.samples.append(Sample(at, self._source.cpu_s(), memory, len(processes), threads))

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._take()

    def cpu_between(self, begin: float, end: float) -> float:
        """Returns the CPU seconds between two moments of the monotonic clock, with linear interpolation
        between samples."""
        return cpu_at(self.samples, end) - cpu_at(self.samples, begin)

    def memory(self, begin: float, end: float) -> Memory | None:
        """Returns the peak memory between two moments; None if it was not read."""
        return peak_memory(self.samples, begin, end)


def cpu_at(samples: list[Sample], at: float) -> float:
    place = bisect.bisect_left([sample.at for sample in samples], at)
    if place == len(samples):
        return samples[-1].cpu_s
    if place == 0:
        return samples[0].cpu_s
    before, after = samples[place - 1], samples[place]
    return before.cpu_s + (after.cpu_s - before.cpu_s) * (at - before.at) / (after.at - before.at)


def peak_memory(samples: list[Sample], begin: float, end: float) -> Memory | None:
    """Returns the peak of each part; None if it was not read."""
    told = [sample.memory for sample in samples if begin <= sample.at <= end and sample.memory is not None]
    if not told:
        return None
    return Memory(max(memory.own_bytes for memory in told), max(memory.file_bytes for memory in told))


def end_all(source: Group | Tree) -> None:
    """Ends all processes that a contender left running."""
    for _ in range(REMOVAL_TRIES):
        left = [process for process in source.processes() if process != os.getpid()]
        left = [process for process in left if Path(f"/proc/{process}").exists()]
        if not left:
            break
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)
    source.remove()
