"""One process that runs a function: starting it, waiting for its answers, and how it ended."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import site
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from feedstock._rows.limits import NO_LIMITS, Limits
from feedstock._rows.messages import Map, Progress, Start, Unmap
from feedstock._rows.output import Output
from feedstock._rows.shared import Area, Areas
from feedstock._rows.wire import receive, send

log = logging.getLogger("feedstock.rows")

#: Seconds that a row runs before it is logged as stuck, once.
STUCK_SECONDS = 10.0

# Seconds between looks at the row under way, and at the process where the kernel has no descriptors of processes.
_LOOK_SECONDS, _POLL_SECONDS = 1.0, 0.05

# Seconds that an idle process has to end after its connection was closed, and another one after its rows were given up.
_GRACE_SECONDS = 2.0

# One thread each: the CPUs have a process each.
_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class ProcessEnded(Exception):
    """The process ended before it answered.

    Args:
        how: What ended it, as in "was killed by SIGKILL".
        row: The row that it ran then; None between rows.
    """

    def __init__(self, how: str, row: int | None) -> None:
        super().__init__(how)
        self.how, self.row = how, row


class RowProcess:
    """A process, for one thread of this one.

    Args:
        step: The step's name in log messages.
        start: The message that gives it the function.
        timeout: Seconds after which a row is killed; None: never.
        sample_of: Returns the sample of the row that runs, for log messages.
        is_given_up: Whether no caller waits for the rows that run.
        limits: Limits of the process.
    """

    def __init__(
        self,
        step: str,
        start: Start,
        timeout: float | None,
        sample_of: Callable[[int], str],
        is_given_up: Callable[[], bool],
        limits: Limits = NO_LIMITS,
    ) -> None:
        self._step, self._timeout, self._sample_of = step, timeout, sample_of
        self._is_given_up = is_given_up
        self._given_up_since: float | None = None
        self._mapped: set[int] = set()
        self._stuck_since = 0.0  # when the row that was logged as stuck began
        self._killed: str | None = None  # why this process killed it
        area = Area(Progress.FORMAT.size)
        self._progress = Progress(area.memory)
        self._connection, theirs = socket.socketpair()
        with theirs:
            arguments = ["-m", "feedstock._rows", str(theirs.fileno()), str(os.getpid())]
            self._process = subprocess.Popen(
                [*_interpreter(), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(theirs.fileno(),),
                env=limits.environment(_environment()),
            )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        pipes = ((self._process.stdout, logging.INFO), (self._process.stderr, logging.WARNING))
        self._outputs = {
            output.fd: output
            for output in (Output(os.dup(p.fileno()), lvl, step, self.pid) for p, lvl in pipes)
        }
        for pipe, _ in pipes:
            pipe.close()
        self._ended: int | None = None  # readable once the process has ended
        with contextlib.suppress(AttributeError, OSError):  # other kernels; sandboxes
            self._ended = os.pidfd_open(self.pid)
        self._send(start, area.fd)

    def share(self, areas: Areas, *shared: Area) -> None:
        """Maps areas in the process, and unmaps those that are not used any more."""
        gone = [number for number in self._mapped if not areas.is_alive(number)]
        if gone:
            self._mapped.difference_update(gone)
            self._send(Unmap(gone))
        for area in shared:
            if area.number not in self._mapped:
                self._mapped.add(area.number)
                self._send(Map(area.number, area.size), area.fd)

    def ask(self, message: Any = None) -> Any:
        """Sends a message if there is one, and returns the next answer.

        Raises:
            ProcessEnded: It ended, or was killed because a row ran longer than the timeout.
        """
        if message is not None:
            self._send(message)
        self._given_up_since = None
        poll = select.poll()
        watched = [self._connection.fileno(), *self._outputs]
        watched += [] if self._ended is None else [self._ended]
        for fd in watched:
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(1000 * self._pause())}
            for fd in ready & self._outputs.keys():
                if not self._outputs[fd].drain():
                    poll.unregister(fd)
            if self._connection.fileno() in ready:
                return self._receive()
            if self._process.poll() is not None:
                raise self._end()
            self._look()

    def kill(self, why: str | None = None) -> None:
        """Kills it. A thread that waits for an answer gets ``ProcessEnded``."""
        self._killed = self._killed or why
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """Lets an idle process end, and kills it after 2 s."""
        self._connection.close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._release()

    def _send(self, message: Any, fd: int | None = None) -> None:
        try:
            send(self._connection, message, fd)
        except ConnectionError:
            raise self._end() from None

    def _receive(self) -> Any:
        try:
            return receive(self._connection)
        except (EOFError, ConnectionError):
            raise self._end() from None

    def _end(self) -> ProcessEnded:
        """Waits for the end and returns how it was."""
        self._connection.close()
        try:
            status = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:  # it closed the connection and goes on
            self._process.kill()
            status = self._process.wait()
        row, _ = self._progress.read()
        self._release()
        if self._killed is not None:
            return ProcessEnded(self._killed, row)
        if status < 0:
            return ProcessEnded(f"was killed by {_signal(-status)}", row)
        return ProcessEnded(f"ended with exit status {status}", row)

    def _release(self) -> None:
        for output in self._outputs.values():
            output.finish()
        self._outputs.clear()
        if self._ended is not None:
            os.close(self._ended)
            self._ended = None

    def _pause(self) -> float:
        if self._ended is None:
            return _POLL_SECONDS
        return _LOOK_SECONDS if self._timeout is None else min(_LOOK_SECONDS, max(self._timeout / 10, 0.01))

    def _look(self) -> None:
        """Logs a row that is stuck, and kills one that is over the timeout or was given up."""
        if self._is_given_up():
            now = time.monotonic()
            self._given_up_since = self._given_up_since or now
            if now - self._given_up_since >= _GRACE_SECONDS:
                self.kill("was killed, since no caller waited for its rows")
            return
        row, begun = self._progress.read()
        if row is None:
            return
        seconds = time.monotonic() - begun
        if self._timeout is not None and seconds > self._timeout:
            self.kill(f"was killed, since the row took more than timeout={self._timeout:g} s")
        elif seconds > STUCK_SECONDS and begun != self._stuck_since:
            self._stuck_since = begun
            log.warning(
                "%s is stuck: %s has been running for %.0f s in process %d%s",
                self._step,
                self._sample_of(row),
                seconds,
                self.pid,
                "; set timeout= to end such rows" if self._step.startswith("map_rows") else "",
            )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _interpreter() -> list[str]:
    # -P leaves the current folder out of sys.path until the parent's is known: it may have a module of any name.
    return [sys.executable, "-P"] if sys.version_info >= (3, 11) else [sys.executable]


def _environment() -> dict[str, str]:
    environment = {**os.environ, **dict.fromkeys(_ONE_THREAD, "1")}
    package = str(Path(__file__).parents[2])
    if package not in (*site.getsitepackages(), site.getusersitepackages()):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return environment
