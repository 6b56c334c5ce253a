"""How many workers a fleet should have, from how long the ranks waited: arithmetic, no clock and no Ray.

A rank that waits is a GPU that idles, so a fleet grows soon and by what is missing; a worker too many costs only
itself, so a fleet shrinks late and by one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ... import ConfigError


@dataclass(frozen=True)
class Scaling:
    """When a fleet changes its size.

    Args:
        out_share: Grow when ranks waited for more than this share of their time, 0 to 1. The mean over ranks and over
            ``out_seconds``: one slow step, or one rank with a bad link, is not what more workers would mend. 0.05 is
            a twentieth of the GPUs' time.
        out_seconds: Judged over this long; a step's noise is gone after a few steps, and Ray takes seconds to start a
            worker and minutes to start a node, so that less would gain little.
        growth: The fleet grows to ready / (1 - waited), at most by this factor at once. While ranks wait nearly all of
            the time, that estimate is worth nothing: doubling reaches any size in a few rounds.
        in_share: Shrink when ranks waited for less than this share, 0 to 1, at every look. Ten times below
            ``out_share``: one worker less of eleven costs a tenth, so a fleet that shrank need not grow again at once.
        in_seconds: For this long, longer than most checkpoints and evaluations.
        in_seconds_most: Each time that a fleet has to grow after it shrank, ``in_seconds`` doubles up to this, so that
            a fleet between two sizes comes to rest. The first shrinking that is not regretted sets it back.
    """

    out_share: float = 0.05
    out_seconds: float = 10.0
    growth: float = 2.0
    in_share: float = 0.005
    in_seconds: float = 60.0
    in_seconds_most: float = 960.0

    def __post_init__(self) -> None:
        if not 0 <= self.in_share < self.out_share <= 1:
            raise ConfigError(
                "in_share and out_share must be 0 <= in_share < out_share <= 1; got "
                f"in_share={self.in_share}, out_share={self.out_share}"
            )
        if self.growth <= 1:
            raise ConfigError(f"growth must be > 1; got {self.growth}")
        if not (self.out_seconds > 0 and 0 < self.in_seconds <= self.in_seconds_most):
            raise ConfigError(
                "out_seconds must be > 0 and in_seconds 0 < in_seconds <= in_seconds_most; got "
                f"out_seconds={self.out_seconds}, in_seconds={self.in_seconds}, "
                f"in_seconds_most={self.in_seconds_most}"
            )


class Policy:
    """The size that a fleet should have now; asked every fraction of a second."""

    def __init__(
        self, min_workers: int, max_workers: int, scaling: Scaling, *, size: int | None = None
    ) -> None:
        self._min, self._max, self._scaling = min_workers, max_workers, scaling
        self._size = min(max(min_workers, size or 0), max_workers)
        self._ready = 0  # what the looks below were taken with
        self._looks: deque[tuple[float, float]] = deque()  # (when, mean waited share), newest last
        self._calm_since: float | None = None
        self._patience = scaling.in_seconds
        self._shrank = False  # the last change was a shrinking

    @property
    def size(self) -> int:
        """The last answer."""
        return self._size

    def target(self, now: float, waited: Sequence[float], ready: int, pending: int) -> int:
        """The size from now on.

        Args:
            now: Seconds on any steady clock.
            waited: Of each rank that took batches lately: the share of its time that it waited, 0 to 1. Empty: nothing
                is known, and the size stays.
            ready: Workers that serve.
            pending: Workers that were asked for and do not serve yet.
        """
        if not waited or ready != self._ready:
            self._judge_afresh(ready)  # other workers: what was seen before says nothing
        if not waited:
            return self._size
        share = sum(waited) / len(waited)
        self._looks.append((now, share))
        if share >= self._scaling.in_share:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now
        if ready and not pending and self._waits_long(now):
            self._grow(ready)
        elif self._calm_since is not None and now - self._calm_since >= self._patience:
            self._shrink(now, ready, pending)
        return self._size

    def _waits_long(self, now: float) -> bool:
        begin = now - self._scaling.out_seconds
        while len(self._looks) > 1 and self._looks[1][0] <= begin:
            self._looks.popleft()  # the first that is left covers the window's begin
        return self._looks[0][0] <= begin and self._mean() > self._scaling.out_share

    def _mean(self) -> float:
        return sum(share for _, share in self._looks) / len(self._looks)

    def _grow(self, ready: int) -> None:
        busy = max(1.0 - self._mean(), 1e-9)
        wanted = math.ceil(min(ready / busy, ready * self._scaling.growth))
        grown = min(max(wanted, ready + 1, self._size), self._max)
        if grown > self._size:
            if self._shrank:
                self._patience = min(2 * self._patience, self._scaling.in_seconds_most)
            self._size, self._shrank = grown, False
        self._judge_afresh(ready)

    def _shrink(self, now: float, ready: int, pending: int) -> None:
        # Those asked for in vain go all at once: nobody misses them, and the autoscaler still looks for nodes.
        wanted = ready if pending else self._size - 1
        shrunk = max(min(wanted, self._size), self._min)
        if shrunk < self._size:
            if self._shrank:
                self._patience = self._scaling.in_seconds
            self._size, self._shrank = shrunk, True
        self._calm_since = now

    def _judge_afresh(self, ready: int) -> None:
        self._ready = ready
        self._looks.clear()
        self._calm_since = None
