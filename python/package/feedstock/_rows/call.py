"""One call of a function of rows, and what became of it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from feedstock._rows.spec import ResultError, Spec, store

#: Bytes of a traceback in an error. Of longer ones, the beginning and the end are kept.
TRACEBACK_BYTES = 4096
_HEAD_BYTES = 1024


class Call:
    """Calls ``fn`` in the process that made this object."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._process = os.getpid()

    def __call__(self, row: dict[str, Any], rng: np.random.Generator) -> Any:
        """Returns the result of ``fn``. A fork of this process that returns from ``fn`` ends."""
        try:
            return self._fn(row, rng)
        finally:
            if os.getpid() != self._process:
                os._exit(0)  # only the process that was asked may answer

    def into(
        self,
        row: dict[str, Any],
        rng: np.random.Generator,
        outputs: Mapping[str, Spec],
        rows: Mapping[str, np.ndarray[Any, Any]],
        sent: dict[str, Any],
    ) -> str | None:
        """Writes the result to ``rows`` and ``sent``. Returns the reason if there is none, without a subject."""
        try:
            store(self(row, rng), outputs, rows, sent)
        except ResultError as error:
            return str(error)
        except BaseException as error:
            return failure(error)
        return None


def failure(error: BaseException) -> str:
    """Returns what was raised, with the traceback of the caller's code, at most 4 KiB."""
    lines = traceback.format_exception(type(error), error, _of_caller(error.__traceback__))
    encoded = "".join(lines).rstrip().encode(errors="replace")
    if len(encoded) > TRACEBACK_BYTES:
        tail = TRACEBACK_BYTES - _HEAD_BYTES - 8
        encoded = encoded[:_HEAD_BYTES] + b"\n...\n" + encoded[-tail:]
    return f"raised {type(error).__name__}:\n{encoded.decode(errors='ignore')}"


def _of_caller(frames: TracebackType | None) -> TracebackType | None:
    """Leaves out the frames of this package, which come first."""
    package = os.path.dirname(__file__)
    while frames is not None and os.path.dirname(frames.tb_frame.f_code.co_filename) == package:
        frames = frames.tb_next
    return frames
