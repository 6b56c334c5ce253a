"""Threads of this process that run a function's rows."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from feedstock._rows.call import Call, failure
from feedstock._rows.columns import Inputs
from feedstock._rows.generator import generator
from feedstock._rows.job import ClosedError, Job
from feedstock._rows.messages import Tried
from feedstock._rows.process import STUCK_SECONDS
from feedstock._rows.spec import ResultError, Spec, TensorSpec, arrays_of

log = logging.getLogger("feedstock.rows")

_LOOK_SECONDS = 1.0

_Task = tuple[Job, int, Callable[[int], "str | None"]]


class Threads:
    """Runs a function's rows in threads. The arguments are those of ``Processes``."""

    def __init__(self, step: str, fn: Callable[..., Any], seed: int, number: int, workers: int) -> None:
        self._step, self._workers = step, workers
        self._call = Call(fn)
        self._seed, self._number = seed, number
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._beginning = threading.Lock()  # several batches begin at once
        self._closing = threading.Event()
        self._end = weakref.finalize(self, _end, self._tasks, self._closing, workers, os.getpid())
        self._end.atexit = False

    def run(
        self, inputs: Inputs, ids: Sequence[int], epoch: int, outputs: dict[str, Spec]
    ) -> tuple[dict[str, Any], dict[int, str]]:
        """Returns the results, rows first, and the reasons of rows without one."""
        rows = len(ids)
        results = {
            name: np.zeros((rows, *spec.shape), spec.dtype)
            for name, spec in outputs.items()
            if isinstance(spec, TensorSpec)  # all are: only items have others, and run in processes
        }

        running: dict[int, float] = {}

        def one(row: int) -> str | None:
            running[row] = time.monotonic()
            rng = generator(self._seed, epoch, ids[row], self._number)
            into = {name: array[row : row + 1].reshape(array.shape[1:]) for name, array in results.items()}
            try:
                return self._call.into(inputs.row(row), rng, outputs, into, {})
            finally:
                del running[row]

        job = Job(ids, epoch)
        self._begin()
        for row in range(rows):
            self._tasks.put((job, row, one))
        if self._closing.is_set():
            job.fail(ClosedError())  # the threads may have ended before they got the rows
        logged: set[int] = set()
        while not job.is_done(_LOOK_SECONDS):
            self._look(job, dict(running), logged)
        return results, job.wait()

    def _look(self, job: Job, running: dict[int, float], logged: set[int]) -> None:
        """Logs rows that are stuck, each once."""
        for row, begun in running.items():
            seconds = time.monotonic() - begun
            if seconds > STUCK_SECONDS and row not in logged:
                logged.add(row)
                log.warning(
                    "%s is stuck: %s has been running for %.0f s in a thread",
                    self._step,
                    job.name(row),
                    seconds,
                )

    def attempt(self, row: dict[str, Any], sample: int, epoch: int) -> Tried:
        """Runs one row, of which dtypes and shapes of the results are unknown, in the calling thread."""
        try:
            return Tried(arrays_of(self._call(row, generator(self._seed, epoch, sample, self._number))), None)
        except ResultError as error:
            return Tried({}, str(error))
        except Exception as error:
            return Tried({}, failure(error))

    def close(self) -> None:
        """Has the threads end after their rows. The loader waits for them."""
        self._end.detach()  # at Python's exit, calling it would do nothing
        _end(self._tasks, self._closing, self._workers, os.getpid())

    def join(self, until: float) -> bool:
        """Waits until ``until``, of ``time.monotonic()``; returns whether all threads have ended."""
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _begin(self) -> None:
        with self._beginning:
            for number in range(len(self._threads), self._workers):
                name = f"feedstock-rows-{number}"
                thread = threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()


def _work(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        job, row, one = task
        try:
            reason = one(row)
            job.finish(1, {} if reason is None else {row: reason})
        except BaseException as error:
            job.fail(error)
        del task, job, one  # a batch must not stay alive until the next row


def _end(tasks: SimpleQueue[_Task | None], closing: threading.Event, threads: int, process: int) -> None:
    if os.getpid() != process:
        return  # a fork has none of the threads
    closing.set()
    while True:
        try:
            task = tasks.get_nowait()
        except Empty:
            break
        if task is not None:
            task[0].fail(ClosedError())
    for _ in range(threads):
        tasks.put(None)
