"""Allows one benchmark at a time on a machine: two would measure each other, and overwrite each other's
results."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Running(RuntimeError):
    """Another benchmark has not ended."""


@contextmanager
def alone(cache: Path) -> Iterator[None]:
    """Locks the machine for one benchmark, with a file lock that the kernel releases when the process ends."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "running").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Running(
                f"another benchmark is running (process {file.read()}); wait for it, or stop it"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
