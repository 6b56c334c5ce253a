"""Memory that this process and those of the functions map at the same time.

An area is an anonymous file in memory: `/dev/shm`, which is small in containers, is not used. Its descriptor is sent to
a process once. Areas of results are lent to the caller and return when the last array on them is dropped.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

# Sizes are rounded up, so that batches of slightly different sizes use the same areas.
_GRAIN = 1 << 20

# An area that is this many times larger than needed is not used, so that one large batch does not stay in memory.
_SLACK = 4

_numbers = itertools.count()


class Area:
    """Shared memory. It is unmapped when the last reference and the last array on it are dropped."""

    def __init__(self, size: int) -> None:
        self.number = next(_numbers)
        self.size = size
        self.fd = _anonymous_file(size)
        self.memory = mmap.mmap(self.fd, size)
        weakref.finalize(self, _close, self.fd, os.getpid()).atexit = False

    def array(self, offset: int, dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Returns a view."""
        view: np.ndarray[Any, Any] = np.ndarray(shape, dtype, self.memory, offset)
        return view


class Areas:
    """Areas that are used again. ``kept`` of them stay mapped while they are free."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._free: list[Area] = []
        # The garbage collector may give an area back in a thread that holds the lock.
        self._returned: deque[Area] = deque()
        self._alive: weakref.WeakValueDictionary[int, Area] = weakref.WeakValueDictionary()

    def take(self, size: int) -> Area:
        """Returns an area of at least ``size`` bytes with any content."""
        rounded = -(-max(size, 1) // _GRAIN) * _GRAIN
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            fitting = [area for area in self._free if rounded <= area.size <= _SLACK * rounded]
            if fitting:
                area = min(fitting, key=lambda area: area.size)
                self._free.remove(area)
            else:
                area = Area(rounded)
                self._alive[area.number] = area
            del self._free[: -self._kept]
            return area

    def give_back(self, area: Area) -> None:
        """Makes an area free for a later batch. Only if no process writes to it any more."""
        self._returned.append(area)

    def lend(self, area: Area) -> np.ndarray[Any, Any]:
        """Returns the area's bytes; it comes back when they and all views of them are dropped."""
        lent = np.frombuffer(area.memory, np.uint8)
        weakref.finalize(lent, self.give_back, area).atexit = False
        return lent

    def is_alive(self, number: int) -> bool:
        """Returns whether an area may be used again, so that processes keep it mapped."""
        return number in self._alive


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("feedstock-rows")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def _close(fd: int, process: int) -> None:
    if os.getpid() == process:
        os.close(fd)
