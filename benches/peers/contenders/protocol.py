"""Defines a contender and the events that it sends to the harness.

A contender is one file of this folder. The harness imports it for its description, so its top level may
import only the standard library. The harness runs it in the peer's own environment as ``python -m
contenders.PEER JOB``, where JOB is a file with a job as JSON. The contender opens its loader, takes batches,
and writes JSON lines to the descriptor that ``PEERS_EVENTS`` names: ``opened``, ``first`` (with shape, dtype
and type of tensors), ``step`` for every batch, ``fetched`` (at the begin and end of the measured samples, if
a loader reports what it reads), ``end``. Each line has the time of the system's monotonic clock, which the
harness also reads. All measuring is done by the harness.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PICTURES = ("pictures-train", "pictures-eval", "pictures-f32")
SPEECH = ("speech",)

# Storages: local files, the tests' S3 server, and the same server with the latency and failures of a real store.
LOCAL = "local"
S3 = "s3"
REALISTIC = "s3-realistic"
STORAGES = (LOCAL, S3, REALISTIC)

SIDE = 224
EVAL_SIDE = 256
GRID = 8  # cells along each side of a crop that is compared
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
SAMPLE_RATE = 16_000
N_FFT = 400
HOP = 160
MELS = 80
FLOOR = 1e-10

# Size of shuffle buffers that are bounded by a number of samples, and of feedstock's window. A larger one, in
# the usual proportion to an epoch, would hold a large part of these few thousand samples before they are
# measured.
SHUFFLE_SAMPLES = 256

# The time after which a request for a small object is repeated if no answer has come: the guideline for
# latency-sensitive applications in Amazon S3's documentation.
RETRY_AFTER_S = 2


def is_bucket(storage: str) -> bool:
    """Returns whether contenders read this storage over S3. All that read ``s3`` take part in it."""
    return storage in (S3, REALISTIC)


@dataclass(frozen=True)
class Job:
    """A job of the harness."""

    job: str
    storage: str  # one of STORAGES
    mode: str  # prepare, steady, steps, stall, save, resume or check
    uris: dict[str, str]  # the data by layout: parquet, folder, webdataset
    native: str  # where this peer's own format is, or is to be written (without s3: a folder)
    batch_size: int
    cores: int
    workers: int  # processes or threads, as calibrated
    samples: int  # of one epoch
    warm_up: int = 0  # samples before the measured ones
    measured: int = 0  # samples over which the rate is measured
    least_s: float = 0.0  # the measurement is repeated as often as one begins within this time
    step_s: float = 0.0  # time of the consumer's step after each batch
    epochs: int = 1  # for a check
    steps: int = 0  # steps before a state is saved, or before the consumer stalls
    pause: float = 0.0  # pause of a consumer that stalls
    sample_bytes: float = 0.0  # bytes of a sample in the files, if the loader reports what it reads
    seed: int = 7
    scratch: str = ""  # a folder for this run only, empty at the start
    endpoint: str = ""  # endpoint of the S3 server; the keys are in the environment
    output: str = ""  # file for the state, or for the outputs to be checked

    @classmethod
    def read(cls, path: str) -> Job:
        return cls(**json.loads(Path(path).read_text()))

    @property
    def speech(self) -> bool:
        return self.job in SPEECH

    @property
    def random(self) -> bool:
        """Whether crops, flips and the order are random; otherwise the order does not matter."""
        return self.job in ("pictures-train", "pictures-f32")

    @property
    def remote(self) -> bool:
        return is_bucket(self.storage)

    @property
    def late(self) -> bool:
        """Whether answers are as late, slow and lost as those of a real store."""
        return self.storage == REALISTIC


@dataclass
class Batch:
    """What the consumer gets: an array or tensor of the job's shape, and the identity of its rows (labels or
    audio clip numbers)."""

    data: Any
    ids: Any
    lengths: Any = None  # number of frames in each row, for speech


@dataclass
class Loader:
    """Endless batches, epoch after epoch, and the loader's state, if it has one."""

    batches: Iterator[Batch]
    state: Callable[[], Any] | None = None
    fetched: Callable[[], int] | None = None  # bytes read from storage so far


@dataclass(frozen=True)
class Contender:
    """A peer, or one way of using it."""

    title: str
    open: Callable[[Job, Any], Loader]  # (job, a saved state or None)
    layout: str  # parquet, folder, webdataset or native
    reads: str = ""  # in words, if it is not the layout of all its jobs
    tensors: str = (
        "torch"  # the type of its batches: torch or numpy. It is compared with feedstock's own of that type
    )
    jobs: tuple[str, ...] = PICTURES
    storages: tuple[str, ...] = (LOCAL, S3)  # S3 stands for all buckets
    cannot: dict[str, str] = field(default_factory=dict)  # a job, storage or "resume", and why not
    modes: tuple[str, ...] = ()  # the only modes that it takes part in; empty: all
    prepare: Callable[[Job], None] | None = None  # writes its own format
    numbers: tuple[float, ...] = (0.5, 1, 2)  # numbers of workers to try, per core
    resume: bool = False
    environment: str = ""  # the requirements file, if it does not have the file's own name
    guidance: tuple[str, ...] = ()  # setting: where the project documents it


class Events:
    """Writes JSON lines to the harness."""

    def __init__(self) -> None:
        self._file = os.fdopen(int(os.environ.pop("PEERS_EVENTS")), "w", buffering=1)

    def tell(self, event: str, at: float | None = None, **facts: Any) -> None:
        line = {"event": event, "at": time.monotonic() if at is None else at, **facts}
        self._file.write(json.dumps(line) + "\n")


def as_list(values: Any) -> list[Any]:
    return list(values.tolist()) if hasattr(values, "tolist") else list(values)


def as_array(values: Any) -> Any:
    import numpy as np

    return np.asarray(values.numpy() if hasattr(values, "numpy") else values)


def made_of(values: Any) -> str:
    """Returns torch or numpy: the library of these arrays, or of arrays made from them."""
    for module, kind in (("torch", "Tensor"), ("numpy", "ndarray")):
        if module in sys.modules and isinstance(values, getattr(sys.modules[module], kind)):
            return module
    return type(values).__module__.split(".", 1)[0]


def main(contender: Contender) -> None:
    """Runs the contender's process."""
    if len(sys.argv) != 2:
        sys.exit(f"{contender.title}: run by benches/peers/run; see its --help")
    job = Job.read(sys.argv[1])
    events = Events()
    if job.mode == "prepare":
        if contender.prepare is None:
            sys.exit(f"{contender.title} has no format of its own")
        contender.prepare(job)
    else:
        state = pickle.loads(Path(job.output).read_bytes())["state"] if job.mode == "resume" else None
        loader = contender.open(job, state)
        events.tell("opened")
        MODES[job.mode](job, loader, events)
    events.tell("end")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without cleaning up: the harness ends all processes that are left


def _told(batch: Batch, number: int, events: Events, **facts: Any) -> float:
    """Reports a batch; the first one with its shape and type."""
    at = time.monotonic()
    if number == 0:
        dtype = str(batch.data.dtype).removeprefix("torch.")
        facts |= {"shape": list(batch.data.shape), "dtype": dtype, "tensors": made_of(batch.data)}
    events.tell("step" if number else "first", at, n=int(batch.data.shape[0]), **facts)
    return at


def _steady(job: Job, loader: Loader, events: Events) -> None:
    """Measures by a number of samples, not by time: a slower contender takes longer for the same work. A fast
    one repeats it; otherwise the measurement would be too short to be exact."""
    counted, goal, begun = 0, job.warm_up + job.measured, None
    for number, batch in enumerate(loader.batches):
        at = _told(batch, number, events)
        counted += int(batch.data.shape[0])
        begins = begun is None and counted >= job.warm_up
        if begins:
            begun = at
        if counted >= goal and begun is not None and at - begun < job.least_s:
            goal += job.measured
        ended = counted >= goal
        if loader.fetched is not None and (begins or ended):
            events.tell("fetched", bytes=loader.fetched())
        if ended:
            return


def _steps(job: Job, loader: Loader, events: Events) -> None:
    """As ``_steady``, with a consumer that sleeps after each batch. Each event has the time at which the
    consumer requested the batch."""
    counted, begun = 0, False
    requested = time.monotonic()
    for number, batch in enumerate(loader.batches):
        _told(batch, number, events, requested=requested)
        counted += int(batch.data.shape[0])
        begins, ended = not begun and counted >= job.warm_up, counted >= job.warm_up + job.measured
        begun = begun or begins
        if loader.fetched is not None and (begins or ended):
            events.tell("fetched", bytes=loader.fetched())
        if ended:
            return
        time.sleep(job.step_s)
        requested = time.monotonic()


def _stall(job: Job, loader: Loader, events: Events) -> None:
    time.sleep(1.0)  # until work that opening started is done
    events.tell("rest")
    for number, batch in enumerate(loader.batches):
        _told(batch, number, events)
        if number + 1 == job.steps:
            events.tell("stalled")
            time.sleep(job.pause)
            events.tell("woken")
        if number == job.steps + 4:
            return


def _save(job: Job, loader: Loader, events: Events) -> None:
    if loader.state is None:
        sys.exit("it has no state to save")
    state = None
    for number, batch in enumerate(loader.batches):
        _told(batch, number, events)
        if number + 1 == job.steps:
            state = loader.state()
        elif number == job.steps:
            Path(job.output).write_bytes(pickle.dumps({"state": state, "next": as_list(batch.ids)}))
            return


def _resume(job: Job, loader: Loader, events: Events) -> None:
    wanted = pickle.loads(Path(job.output).read_bytes())["next"]
    batch = next(loader.batches)
    at = time.monotonic()
    _told(batch, 0, events, right=as_list(batch.ids) == wanted)
    events.tell("resumed", at)


def crop_facts(crop: Any) -> Any:
    """Returns mean and standard deviation of a crop, its channels' means, and the means of its grid cells,
    row by row: f64 [2 + 3 + 8 × 8]."""
    import numpy as np

    values = np.asarray(crop, dtype=np.float64)
    if values.shape[0] != 3:
        values = values.transpose(2, 0, 1)
    cell = SIDE // GRID
    grid = values.mean(axis=0).reshape(GRID, cell, GRID, cell).mean(axis=(1, 3))
    return np.concatenate([[values.mean(), values.std()], values.mean(axis=(1, 2)), grid.ravel()])


def _check(job: Job, loader: Loader, events: Events) -> None:
    """Stores what the harness compares, under samples' names: one epoch's rows, or the facts of many random
    crops."""
    import numpy as np

    rows: dict[str, Any] = {}
    crops: dict[str, list[Any]] = {}
    counted = 0
    for number, batch in enumerate(loader.batches):
        _told(batch, number, events)
        data = as_array(batch.data)
        lengths = None if batch.lengths is None else as_list(batch.lengths)
        for row, name in enumerate(as_list(batch.ids)):
            if job.random:
                crops.setdefault(str(name), []).append(crop_facts(data[row]))
            else:
                rows[str(name)] = np.array(data[row] if lengths is None else data[row, : lengths[row]])
        counted += len(data)
        if counted >= job.samples * job.epochs:
            break
    rows |= {name: np.array(found) for name, found in crops.items()}
    np.savez(job.output, **rows)


MODES: dict[str, Callable[[Job, Loader, Events], None]] = {
    "steady": _steady,
    "steps": _steps,
    "stall": _stall,
    "save": _save,
    "resume": _resume,
    "check": _check,
}
