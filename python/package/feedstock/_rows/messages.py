"""What this process and those of the functions send each other."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Any

from feedstock._rows.layout import Layout
from feedstock._rows.spec import Spec
from feedstock._rows.tree import Node


@dataclass(frozen=True)
class Start:
    """The first message. The descriptor of ``Progress`` follows. The answer is ``Started``."""

    fn: bytes  # by cloudpickle
    sys_path: list[str]
    seed: int
    number: int  # of the map_rows step
    memory_bytes: int | None = None  # that the process may allocate; None: no limit
    is_limited: bool = False  # it is of a worker


@dataclass(frozen=True)
class Started:
    """The function was loaded, or ``failure`` is the reason why not."""

    failure: str | None


@dataclass(frozen=True)
class Map:
    """Maps an area; its descriptor follows. No answer."""

    number: int
    size: int


@dataclass(frozen=True)
class Unmap:
    """Unmaps areas. No answer."""

    numbers: list[int]


@dataclass(frozen=True)
class Run:
    """Runs the function on some rows of a batch. The answer is ``Ran``."""

    inputs: tuple[int, Layout]  # area and layout
    results: tuple[int, Layout]
    outputs: dict[str, Spec]
    epoch: int
    rows: list[tuple[int, int]]  # row and sample id


@dataclass(frozen=True)
class Ran:
    """The rows were run. Those without a result are in ``failures``, with the reason."""

    failures: dict[int, str]
    sent: dict[int, dict[str, Any]]  # by row: values that are not in shared memory


@dataclass(frozen=True)
class Try:
    """Runs the function on one row whose results' dtypes and shapes are unknown. The answer is ``Tried``."""

    row: dict[str, Any]
    epoch: int
    sample: int


@dataclass(frozen=True)
class Tried:
    """The result, or the reason why there is none."""

    values: dict[str, Any]  # arrays; of items also texts and bytes
    failure: str | None
    tree: Node | None = None  # of an item


class Progress:
    """The row that a process runs and since when, in memory that its parent reads, also after its end."""

    FORMAT = struct.Struct("=qd")
    _IDLE = -1

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.idle()

    def begin(self, row: int) -> None:
        """Sets the row."""
        self.FORMAT.pack_into(self._memory, 0, row, time.monotonic())

    def idle(self) -> None:
        """Sets that no row is run."""
        self.FORMAT.pack_into(self._memory, 0, self._IDLE, 0.0)

    def read(self) -> tuple[int | None, float]:
        """Returns the row, or None, and when it began, of ``time.monotonic()``."""
        row, begun = self.FORMAT.unpack_from(self._memory, 0)
        return (None if row == self._IDLE else row), begun
