"""Processes that run a function, each with a thread of this process that starts it and hands it rows.

    stage's thread ──tasks──▶ queue ──▶ driver thread 1 ◀─socket─▶ process 1 ─┐
         │                         └──▶ driver thread 2 ◀─socket─▶ process 2 ─┤ read and write
         └── copies inputs to an area of shared memory; lends the results ◀───┘

The kernel kills a process when the thread that started it ends (``PR_SET_PDEATHSIG``), so each driver starts its own.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from feedstock._rows.columns import Inputs
from feedstock._rows.job import Asker, ClosedError, Job
from feedstock._rows.layout import Column, Layout, layout_of_results, write_inputs
from feedstock._rows.limits import NO_LIMITS, Limits
from feedstock._rows.messages import Ran, Run, Start, Started, Tried, Try
from feedstock._rows.process import ProcessEnded, RowProcess
from feedstock._rows.sent import gathered
from feedstock._rows.shared import Area, Areas
from feedstock._rows.spec import Spec
from feedstock.errors import ConfigError, InternalError

log = logging.getLogger("feedstock.rows")

# Rows of a task: half of a worker's part of the batch, so that the last tasks of a batch end at about one time,
# and at most 16, so that a lost process repeats few.
_TASKS_PER_WORKER = 2
_MOST_ROWS = 16

# Seconds that a function may take to load.
_LOAD_SECONDS = 60.0

# Ends of processes between rows, one after another, after which another start would not help.
_MOST_IDLE_ENDS = 3


@dataclass(frozen=True)
class _Batch:
    """Where a job's rows are."""

    job: Job
    inputs: tuple[Area, Layout]
    results: tuple[Area, Layout]
    outputs: dict[str, Spec]


@dataclass(frozen=True)
class _Task:
    """Rows for one process. Without a batch: the sample that is tried; without rows: only its start."""

    job: Job
    rows: list[int]
    batch: _Batch | None = None
    row: dict[str, Any] | None = None
    tried: list[Tried] = field(default_factory=list)


class _Shared:
    """What drivers need. It does not keep ``Processes`` alive."""

    def __init__(
        self, step: str, start: Start, timeout: float | None, areas: Areas, limits: Limits | None
    ) -> None:
        self.step, self.start, self.timeout, self.areas = step, start, timeout, areas
        self.limits = limits or NO_LIMITS
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self.closing = threading.Event()
        self.processes: dict[int, RowProcess] = {}  # by driver; those that run
        self.busy: set[int] = set()  # drivers with a task
        self.drivers: list[threading.Thread] = []
        self.parent = os.getpid()
        self._beginning = threading.Lock()  # several batches begin at once

    def begin(self, drivers: int, eagerly: bool = False) -> None:
        """Starts threads until there are ``drivers``; ``eagerly`` also their processes, before they have tasks."""
        with self._beginning:
            for number in range(len(self.drivers), drivers):
                name = f"feedstock-rows-{number}"
                driver = _Driver(self, number)
                run = driver.run_eagerly if eagerly else driver.run
                thread = threading.Thread(target=run, name=name, daemon=True)
                self.drivers.append(thread)
                thread.start()

    def end(self) -> None:
        """Ends threads and processes; those that run rows are killed, and their rows are given up."""
        if os.getpid() != self.parent:
            return  # a fork has neither
        self.closing.set()
        while True:
            try:
                task = self.tasks.get_nowait()
            except Empty:
                break
            if task is not None:
                task.job.fail(ClosedError())
        for _ in self.drivers:
            self.tasks.put(None)
        for number, process in list(self.processes.items()):
            if number in self.busy:
                process.kill()


class Processes:
    """Runs a function's rows in processes. They start with the first rows.

    Args:
        step: The step's name in messages.
        fn: The function, pickled.
        seed: The seed of the ops.
        number: The number of the step.
        workers: The number of processes.
        timeout: Seconds that a row may take; None: no limit.
        batches: Batches that may be under way at once.
        limits: Limits of the processes, on a worker; None: this is a rank.
    """

    def __init__(
        self,
        step: str,
        fn: bytes,
        seed: int,
        number: int,
        workers: int,
        timeout: float | None,
        batches: int,
        limits: Limits | None = None,
    ) -> None:
        if not sys.executable:
            raise ConfigError(
                'map_rows finds no Python to start (sys.executable is empty); use executor="thread"'
            )
        self._workers = workers
        self._areas = Areas(2 * batches)  # inputs and results of each
        memory_bytes = None if limits is None else limits.memory_bytes
        start = Start(fn, list(sys.path), seed, number, memory_bytes, limits is not None)
        self._shared = _Shared(step, start, timeout, self._areas, limits)
        self._end = weakref.finalize(self, self._shared.end)
        self._end.atexit = False

    def run(
        self,
        inputs: Inputs,
        ids: Sequence[int],
        epoch: int,
        outputs: dict[str, Spec],
        asker: Asker | None = None,
    ) -> tuple[dict[str, Any], dict[int, str]]:
        """Returns the results, rows first, and the reasons of rows without one.

        ``asker`` may give the rows up. Those that run then have 2 s to end before their process is killed.
        """
        rows = len(ids)
        layout, size = layout_of_results(outputs, rows)
        area = self._areas.take(size)
        job = Job(ids, epoch)
        batch = _Batch(job, write_inputs(inputs, rows, self._areas), (area, layout), outputs)
        most = max(1, min(_MOST_ROWS, rows // (_TASKS_PER_WORKER * self._workers)))
        with (asker or Asker()).waits_for(job):
            self._submit(
                [_Task(job, list(range(at, min(at + most, rows))), batch) for at in range(0, rows, most)]
            )
            failures = job.wait()  # after an error, a process may still write: the areas are not used again
        self._areas.give_back(batch.inputs[0])
        lent = self._areas.lend(area)
        results = {
            column.name: lent[column.offset :][: _bytes(column)].view(column.dtype).reshape(column.shape)
            for column in layout.columns
        }
        return {**results, **gathered(outputs, job.sent, rows)}, failures

    def attempt(self, row: dict[str, Any], sample: int, epoch: int) -> Tried:
        """Runs one row, of which dtypes and shapes of the results are unknown."""
        return self.attempts([(row, sample, epoch)], drivers=1)[0]

    def attempts(self, rows: Sequence[tuple[dict[str, Any], int, int]], drivers: int | None) -> list[Tried]:
        """Runs rows with their samples and epochs, as ``attempt`` does, at the same time.

        Args:
            rows: The rows.
            drivers: The number of processes that are started; None: all.
        """
        tasks = [_Task(Job([sample], epoch), [0], row=row) for row, sample, epoch in rows]
        self._submit(tasks, drivers, eagerly=drivers is None)
        found = []
        for task in tasks:
            failures = task.job.wait()
            found.append(task.tried[0] if task.tried else Tried({}, failures[0]))
        return found

    def start_one(self) -> None:
        """Starts one process and has it load the function.

        Raises:
            ConfigError: It cannot load the function, ends, or takes more than 60 s.
        """
        task = _Task(Job([0], 0), [])
        self._submit([task], drivers=1)
        if not task.job.is_done(_LOAD_SECONDS):
            message = (
                f"{self._shared.step}: a new process has not loaded the function after {_LOAD_SECONDS:g} s; do less "
                "while its modules are imported and its objects unpickled"
            )
            task.job.fail(ConfigError(message))  # the process is killed
        task.job.wait()

    def end(self) -> None:
        """Ends the processes, without waiting for them. Callers of ``run`` get ``ClosedError``."""
        self._end.detach()
        self._shared.end()

    def close(self) -> None:
        """Ends the processes and waits for them."""
        self._end.detach()  # at Python's exit, calling it would do nothing
        self._shared.end()
        for driver in self._shared.drivers:
            driver.join()

    def _submit(self, tasks: list[_Task], drivers: int | None = None, eagerly: bool = False) -> None:
        self._shared.begin(drivers or self._workers, eagerly)
        for task in tasks:
            self._shared.tasks.put(task)
        if self._shared.closing.is_set():
            self._shared.end()  # it may have emptied the queue before


def _bytes(column: Column) -> int:
    return int(np.prod(column.shape, dtype=np.int64)) * np.dtype(column.dtype).itemsize


class _Driver:
    """A thread with a process. It replaces one that ended."""

    def __init__(self, shared: _Shared, number: int) -> None:
        self._shared, self._number = shared, number
        self._job: Job | None = None
        self._idle_ends = 0

    def run_eagerly(self) -> None:
        """Starts the process, and runs. If it does not start, it is started again for a task, which gets the error."""
        self._shared.busy.add(self._number)  # so that closing does not wait for its imports
        try:
            self._process()
        except ProcessEnded:
            self._shared.processes.pop(self._number, None)
        except Exception:
            log.debug("%s: a process did not start", self._shared.step, exc_info=True)
        finally:
            self._shared.busy.discard(self._number)
        self.run()

    def run(self) -> None:
        """Hands tasks to the process until the end."""
        while (task := self._shared.tasks.get()) is not None:
            self._job = task.job
            self._shared.busy.add(self._number)
            try:
                if self._shared.closing.is_set():
                    raise ClosedError
                if not task.job.is_given_up:
                    self._serve(task)
            except BaseException as error:
                task.job.fail(error)
            del task
            self._shared.busy.discard(self._number)
            self._job = None
        if (process := self._shared.processes.pop(self._number, None)) is not None:
            process.close()

    def _serve(self, task: _Task) -> None:
        try:
            self._answer(task, self._process())
            self._idle_ends = 0
        except ProcessEnded as end:
            self._shared.processes.pop(self._number, None)
            if self._shared.closing.is_set():
                raise ClosedError from None
            if not task.job.is_given_up:
                self._lost(task, end)

    def _process(self) -> RowProcess:
        process = self._shared.processes.get(self._number)
        if process is None:
            shared = self._shared
            process = RowProcess(
                shared.step, shared.start, shared.timeout, self._sample_of, self._is_given_up, shared.limits
            )
            shared.processes[self._number] = process
            if shared.closing.is_set():
                process.kill()
            started: Started = process.ask()
            if started.failure is not None:
                shared.processes.pop(self._number).close()
                raise ConfigError(
                    f"{shared.step}: a new process cannot load the function; loading it there {started.failure}"
                )
        return process

    def _sample_of(self, row: int) -> str:
        return "a row" if self._job is None else self._job.name(row)

    def _is_given_up(self) -> bool:
        return self._job is not None and self._job.is_given_up

    def _answer(self, task: _Task, process: RowProcess) -> None:
        job = task.job
        if not task.rows:  # the process was to be started
            job.finish(1, {})
            return
        if task.batch is None:
            task.tried.append(process.ask(Try(task.row or {}, job.epoch, job.ids[0])))
            job.finish(1, {})
            return
        (inputs, input_layout), (results, result_layout) = task.batch.inputs, task.batch.results
        process.share(self._shared.areas, inputs, results)
        message = Run(
            (inputs.number, input_layout),
            (results.number, result_layout),
            task.batch.outputs,
            job.epoch,
            [(row, job.ids[row]) for row in task.rows],
        )
        ran: Ran = process.ask(message)
        job.finish(len(task.rows), ran.failures, ran.sent)

    def _lost(self, task: _Task, end: ProcessEnded) -> None:
        """Has the rows of a task whose process ended run elsewhere; the one that it ran, at most once more."""
        step, row = self._shared.step, end.row
        if row is None:
            self._idle_ends += 1
            if self._idle_ends > _MOST_IDLE_ENDS and not task.rows:
                raise ConfigError(
                    f"{step}: {_MOST_IDLE_ENDS + 1} new processes ended while they loaded the function; the last "
                    f"{end.how}"
                )
            if self._idle_ends > _MOST_IDLE_ENDS:
                raise InternalError(
                    f"{step}: {_MOST_IDLE_ENDS + 1} processes ended between rows; the last {end.how}"
                )
            log.warning("%s: a process %s between rows; another one takes its place", step, end.how)
            self._shared.tasks.put(task)
            return
        others = [other for other in task.rows if other != row]
        if others:
            self._shared.tasks.put(_Task(task.job, others, task.batch))
        if task.job.lose(row, end.how):
            log.warning(
                "%s: a process %s while it ran %s, which another one runs again",
                step,
                end.how,
                task.job.name(row),
            )
            self._shared.tasks.put(_Task(task.job, [row], task.batch, task.row, task.tried))
