"""The share of its time that a rank waited for data, from its loader's counters.

Waits that more workers would not shorten do not count, because a fleet would grow to its largest size in vain:

- waits for functions of ``map_python``, which run in the rank's process;
- all waits of a job with spare workers, whose ranks have about 32 workers each already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: How long a share stays valid without a new batch: longer than most steps. A rank that takes no batch for longer is
#: evaluating or writes a checkpoint, which is not evidence about the fleet.
HOLD_SECONDS = 30.0


class WaitedShare:
    """Differences of ``Loader.stats()`` between two looks."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._waited = 0.0
        self._samples = 0
        self._share: float | None = None

    def look(self, now: float, stats: Mapping[str, Any]) -> float | None:
        """Returns the share of the time between the last two looks with new batches, 0 to 1; None if unknown."""
        waited = stats.get("waited_seconds", 0.0) - stats.get("waited_map_python_seconds", 0.0)
        samples = stats.get("samples", 0)
        # The first look, no batch requested yet, or a new run.
        if self._at is None or waited == 0 or waited < self._waited or samples < self._samples:
            self._at, self._waited, self._samples, self._share = now, waited, samples, None
        elif (waited, samples) != (self._waited, self._samples) and now > self._at:
            self._share = min(max((waited - self._waited) / (now - self._at), 0.0), 1.0)
            self._at, self._waited, self._samples = now, waited, samples
        is_known = now - self._at <= HOLD_SECONDS and not stats.get("spare_workers", 0)
        return self._share if is_known else None
