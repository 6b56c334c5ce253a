"""Samples on which functions failed and that were skipped: reports, and the limit of their number."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from feedstock.errors import SampleError

#: Samples that a report lists, as the library's.
LISTED = 8192

_Place = tuple[int, int]  # (epoch, position)


class Skips:
    """What ``on_error("skip")`` skipped for functions of rows. Threads add; the caller's thread delivers.

    Args:
        max_fraction: The share of an epoch's samples that may be skipped.
    """

    def __init__(self, max_fraction: float) -> None:
        self._max_fraction = max_fraction
        self._lock = threading.Lock()
        self._pending: dict[_Place, list[tuple[int, str]]] = {}
        self.count = 0
        self.listed: list[tuple[int, int, str]] = []  # (sample id, epoch, reason)
        self._epoch = 0
        self._skipped: set[int] = set()  # of that epoch
        self._in_ledger = 0  # of that epoch, since the loader was last moved

    def add(self, place: _Place, skipped: list[tuple[int, str]]) -> None:
        """Notes the skipped samples of a batch, which count once it is delivered."""
        with self._lock:
            self._pending.setdefault(place, []).extend(skipped)

    def deliver(self, place: _Place, planned: Callable[[_Place], int]) -> None:
        """Counts a batch's samples; before the caller gets it.

        Args:
            place: The batch.
            planned: Returns the number of this rank's samples in the epoch of a batch.

        Raises:
            SampleError: More than ``max_fraction`` of the epoch's samples were skipped. Nothing is counted then.
        """
        epoch, _ = place
        with self._lock:
            skipped = self._pending.get(place, [])
            known = self._skipped if epoch == self._epoch else set()
            fresh = {sample: reason for sample, reason in skipped if sample not in known}
            if skipped:
                self._check(place, planned(place), len(known) + len(fresh), skipped[-1][1])
            self._pending.pop(place, None)
            if epoch != self._epoch:
                self._epoch, self._skipped, self._in_ledger = epoch, set(), 0
            self._skipped.update(fresh)
            self._in_ledger += len(skipped)
            self.count += len(fresh)
            listed = [(sample, epoch, reason) for sample, reason in fresh.items()]
            self.listed += listed[: LISTED - len(self.listed)]

    def _check(self, place: _Place, planned: int, count: int, last: str) -> None:
        if count > math.floor(planned * self._max_fraction):
            raise SampleError(
                f"functions of map_rows failed on {count} of this rank's {planned} samples of epoch {place[0]}, more "
                f'than max_fraction={self._max_fraction} of on_error("skip"); repair the function or raise '
                f"max_fraction. The last: {last}"
            )

    def substituted(self, epoch: int) -> int:
        """Returns the samples of ``epoch`` that count in the ledger."""
        return self._in_ledger if epoch == self._epoch else 0

    def move(self) -> None:
        """Starts a new ledger, since the loader was moved, and forgets what was not delivered."""
        with self._lock:
            self._pending.clear()
            self._in_ledger = 0
