"""Runs one contender on one job in a separate process, and converts its events into figures."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contenders.protocol import MELS, REALISTIC, SIDE

from harness.account import Account, Group, Memory, Tree, cpu_at, end_all

# The contender ends with the harness, for whatever reason the harness ends.
PR_SET_PDEATHSIG = 1

# Time limits: set-up, and the requested samples at the slowest rate that is worth waiting for.
SETUP_LIMIT_S = 120.0
SLOWEST_RATE = 25.0
SLOWEST_LATE_RATE = 10.0  # where answers come late

SHARED_MEMORY = Path("/dev/shm")

# PSS is read more often in runs that measure only memory.
PSS_SHARE = 0.01
PSS_SHARE_OF_MEMORY_RUNS = 0.2

# Shape and dtype of each job's rows, for any contender; None for the axis in which audio clips differ in
# length.
ROWS: dict[str, tuple[tuple[int | None, ...], str]] = {
    "pictures-train": ((SIDE, SIDE, 3), "uint8"),
    "pictures-eval": ((SIDE, SIDE, 3), "uint8"),
    "pictures-f32": ((3, SIDE, SIDE), "float32"),
    "speech": ((None, MELS), "float32"),
}


class Failed(Exception):
    """A contender did not do its job; the text is the last line that it wrote."""


@dataclass
class Outcome:
    """The events of a run in order, and its use of resources."""

    started: float
    events: list[dict[str, Any]]
    account: Account

    def at(self, event: str) -> float:
        found = next((float(line["at"]) for line in self.events if line["event"] == event), None)
        if found is None:
            raise Failed(f"it ended before the event {event!r}")
        return found


def run(
    peer: str, python: Path, job: Mapping[str, Any], environment: Mapping[str, str], log: Path
) -> Outcome:
    """Starts the contender of ``peer`` with ``job`` and waits until it ends."""
    samples = job.get("warm_up", 0) + job.get("measured", 0)
    if job["mode"] == "check":
        samples = job["samples"] * job.get("epochs", 1)
    slowest_rate = SLOWEST_LATE_RATE if job["storage"] == REALISTIC else SLOWEST_RATE
    steps_s = samples / job["batch_size"] * job.get("step_s", 0.0)
    limit_s = SETUP_LIMIT_S + samples / slowest_rate + steps_s + job.get("pause", 0)
    if job["mode"] == "prepare":
        limit_s *= 10
    group = Group.make(f"feedstock-peers-{os.getpid()}")
    scratch = Path(tempfile.mkdtemp(prefix="feedstock-peers-"))
    description = scratch / "job.json"
    description.write_text(json.dumps({**job, "scratch": str(scratch)}))
    cores = sorted(os.sched_getaffinity(0))[: job["cores"]]
    shared = _shared_memory()
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)

    def begin() -> None:
        if group is not None:
            group.adopt()
        os.sched_setaffinity(0, cores)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    with log.open("wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(
            [str(python), "-m", f"contenders.{peer}", str(description)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, "PEERS_EVENTS": str(writing)},
            pass_fds=(writing,),
            preexec_fn=begin,
            start_new_session=True,
            cwd=scratch,
        )
    os.close(writing)
    source = group or Tree(process.pid)
    eager = job["mode"] in ("stall", "save")
    account = Account(source, PSS_SHARE_OF_MEMORY_RUNS if eager else PSS_SHARE)
    events: list[dict[str, Any]] = []
    reader = threading.Thread(target=_read, args=(reading, events), daemon=True)
    reader.start()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise Failed(f"did not end within {limit_s:.0f} s") from None
    finally:
        account.close()
        end_all(source)
        process.poll()
        reader.join(5.0)
        shutil.rmtree(scratch, ignore_errors=True)
        for left in _unused(_shared_memory() - shared):
            left.unlink(missing_ok=True)
    if process.returncode or not events or events[-1]["event"] != "end":
        raise Failed(last_line(log.read_text(errors="replace")) or f"ended with {process.returncode}")
    return Outcome(started, events, account)


def _shared_memory() -> set[Path]:
    """Returns this user's segments of shared memory. Segments that a contender leaves behind would take
    memory from the following ones, and a later process of the same contender may mistake them for its own."""
    found = set()
    for path in SHARED_MEMORY.glob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_uid == os.getuid():
                found.add(path)
    return found


def _unused(segments: set[Path]) -> set[Path]:
    """Returns the segments that no living process holds: other processes may have created some in the
    meantime."""
    held = set()
    for process in Path("/proc").glob("[0-9]*") if segments else ():
        with contextlib.suppress(OSError):
            maps = (process / "maps").read_text()
            held |= {path for path in segments if str(path) in maps}
            for link in (process / "fd").iterdir():
                held |= segments & {link.resolve()}
    return segments - held


def _read(descriptor: int, events: list[dict[str, Any]]) -> None:
    with os.fdopen(descriptor) as lines:
        for line in lines:
            events.append(json.loads(line))
            if events[-1]["event"] == "end":
                return  # a process that it started may hold the pipe open


def last_line(text: str) -> str:
    """Returns the line of a log that states what went wrong: the last line of an error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error:" in line or line.startswith("Exception")]
    return (errors or lines or [""])[-1][:300]


def figures(job: Mapping[str, Any], outcome: Outcome, tensors: str) -> dict[str, Any]:
    """Returns the figures of a run that are stored, by its mode. Batches with another shape, dtype or kind
    than the job's are a failure."""
    account, events = outcome.account, outcome.events
    if job["mode"] == "prepare":
        return {}
    end = outcome.at("end")
    found: dict[str, Any] = {
        "scope": account.scope,
        **sizes("peak", account.memory(outcome.started, end)),
        "processes": max(sample.processes for sample in account.samples),
        "threads": max(sample.threads for sample in account.samples),
    }
    steps = [line for line in events if line["event"] in ("first", "step")]
    if steps:
        found["first_batch_s"] = outcome.at("first") - outcome.started
        found |= {name: steps[0][name] for name in ("shape", "dtype", "tensors")}
        wrong = unlike(job["job"], tensors, steps[0])
        if wrong:
            raise Failed(wrong)
    if job["mode"] in ("steady", "steps"):
        found |= steady(steps, account, int(job["warm_up"]), int(job["measured"]))
        if job["mode"] == "steps":
            found |= waiting(steps[len(steps) - found["batches"] :], found["seconds"])
        found |= fetched(events, found["samples"] * float(job.get("sample_bytes", 0.0)))
    elif job["mode"] == "stall":
        stalled, woken = outcome.at("stalled"), outcome.at("woken")
        found |= sizes("rest", account.memory(outcome.at("opened"), outcome.at("rest")))
        found |= sizes("running", account.memory(outcome.at("rest"), stalled + 0.5))
        found |= sizes("stalled", account.memory((stalled + woken) / 2, woken))
        found |= sizes("stalled_peak", account.memory(stalled, woken))
        late = cpu_at(account.samples, woken) - cpu_at(account.samples, (stalled + woken) / 2)
        found["stalled_cores"] = late / ((woken - stalled) / 2)
    elif job["mode"] == "resume":
        found["resume_s"] = outcome.at("resumed") - outcome.started
        found["right"] = steps[0]["right"]
    return found


def sizes(name: str, memory: Memory | None) -> dict[str, int]:
    if memory is None:
        raise Failed(f"its memory ({name}) was not read")
    return {f"{name}_bytes": memory.own_bytes, f"{name}_file_bytes": memory.file_bytes}


def waiting(steps: list[dict[str, Any]], seconds: float) -> dict[str, float]:
    """Returns the share of the measured time in which the consumer waited for batches, and its longest wait."""
    waits = [line["at"] - line["requested"] for line in steps]
    return {"wait_share": sum(waits) / seconds, "longest_wait_s": max(waits)}


def unlike(job: str, tensors: str, batch: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with a batch; None if nothing is."""
    rows, dtype = ROWS[job]
    shape = list(batch["shape"][1:])
    fits = len(shape) == len(rows) and all(
        wanted in (None, found) for wanted, found in zip(rows, shape, strict=True)
    )
    if not fits or batch["dtype"] != dtype:
        wanted = ["any" if side is None else side for side in rows]
        return f"its rows are {batch['dtype']} {shape} instead of {dtype} {wanted}"
    if batch["tensors"] != tensors:
        return f"its batches are of {batch['tensors']}, not of {tensors} as it is described"
    return None


def fetched(events: list[dict[str, Any]], consumed: float) -> dict[str, Any]:
    """Returns the bytes that a loader read from storage while its rate was measured, if it reports them, and
    the bytes of the samples that it delivered then. If it read less, the measurement was partly that of
    emptying a buffer."""
    told = [int(line["bytes"]) for line in events if line["event"] == "fetched"]
    if len(told) < 2 or not consumed:
        return {}
    read = told[-1] - told[0]
    return {"fetched_bytes": read, "consumed_bytes": round(consumed), "fetched_share": read / consumed}


def steady(steps: list[dict[str, Any]], account: Account, warm_up: int, measured: int) -> dict[str, Any]:
    """Returns the rate of ``measured`` samples after ``warm_up`` ones, and their CPU time.

    The steady part begins with a delivered batch; its samples are those of the batches after that one.
    """
    counted, begin = 0, None
    for place, line in enumerate(steps):
        counted += line["n"]
        if counted >= warm_up:
            begin = place
            break
    samples = 0 if begin is None else sum(line["n"] for line in steps[begin + 1 :])
    # A batch may be larger than requested, so that the warm-up ended later: one batch less is not a shortage.
    if begin is None or samples + steps[begin]["n"] < measured:
        raise Failed(f"only {sum(line['n'] for line in steps)} samples came of {warm_up + measured}")
    started, ended = steps[begin]["at"], steps[-1]["at"]
    cpu_s = account.cpu_between(started, ended)
    return {
        "samples": samples,
        "batches": len(steps) - begin - 1,
        "seconds": ended - started,
        "warm_up_s": started - steps[0]["at"],
        "rate": samples / (ended - started),
        "cpu_s_per_1000": cpu_s / samples * 1000,
        "cores_used": cpu_s / (ended - started),
    }
