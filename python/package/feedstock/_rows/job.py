"""The rows of a batch that are under way, and what became of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


class ClosedError(Exception):
    """The loader was closed while rows were under way, or these were given up. No caller gets it."""


@dataclass
class Job:
    """A batch. Threads report its rows; the one that waits gets the failures."""

    ids: Sequence[int]
    epoch: int
    failures: dict[int, str] = field(default_factory=dict)  # by row
    sent: dict[int, dict[str, Any]] = field(
        default_factory=dict
    )  # by row: results that are not in shared memory
    error: BaseException | None = None  # of the whole batch
    _left: int = 0
    _ends: dict[int, str] = field(default_factory=dict)  # by row: how the process that ran it ended
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _done: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._left = len(self.ids)
        if not self._left:
            self._done.set()

    def name(self, row: int) -> str:
        """Returns a row's sample, as messages name it."""
        return f"sample {self.ids[row]} of epoch {self.epoch}"

    def finish(
        self, rows: int, failures: dict[int, str], sent: dict[int, dict[str, Any]] | None = None
    ) -> None:
        """Counts ``rows`` as run."""
        with self._lock:
            self.failures.update(failures)
            self.sent.update(sent or {})
            self._left -= rows
            if self._left == 0:
                self._done.set()

    def lose(self, row: int, how: str) -> bool:
        """Notes that a process ended while it ran ``row``. Returns whether to run the row again; else it has failed."""
        first = self._ends.get(row)
        if first is None:
            self._ends[row] = how
            return True
        self.finish(1, {row: f"ended two processes: the first {first}, the second {how}"})
        return False

    def fail(self, error: BaseException) -> None:
        """Ends the batch with an error."""
        with self._lock:
            self.error = self.error or error
            self._done.set()

    @property
    def is_given_up(self) -> bool:
        """Whether no caller waits for its rows any more."""
        return self.error is not None

    def is_done(self, seconds: float) -> bool:
        """Waits for all rows, at most ``seconds``; returns whether none is left."""
        return self._done.wait(seconds)

    def wait(self) -> dict[int, str]:
        """Waits for all rows; returns the failures by row."""
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self.failures


class Asker:
    """One who has rows run, and may give up those under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[Job] = []
        self._has_ended = False

    @contextmanager
    def waits_for(self, job: Job) -> Iterator[None]:
        """Within it, ``give_up`` ends ``job``.

        Raises:
            ClosedError: All was given up.
        """
        with self._lock:
            if self._has_ended:
                raise ClosedError
            self._jobs.append(job)
        try:
            yield
        finally:
            with self._lock:
                self._jobs = [other for other in self._jobs if other is not job]

    def give_up(self) -> None:
        """Ends the jobs under way and all later ones with ``ClosedError``."""
        with self._lock:
            self._has_ended = True
            jobs = list(self._jobs)
        for job in jobs:
            job.fail(ClosedError())
