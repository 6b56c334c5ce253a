"""Reports of how far the opening of a data set is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Literal

Progress = Callable[[str, int, "int | None"], None]


def reporter(progress: Progress | Literal[False] | None) -> Progress | None:
    """Returns the caller's function; by default a status line if standard error is a terminal."""
    if progress is not None:
        return progress or None
    return _StatusLine().show if sys.stderr is not None and sys.stderr.isatty() else None


class _StatusLine:
    """A status line on a terminal, shown after the first second."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1.0

    def show(self, stage: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 0.2
        of = "" if total is None else f" of {total:,}"
        sys.stderr.write(f"\rfeedstock: {stage}: {done:,}{of}\x1b[K\r")
        sys.stderr.flush()
