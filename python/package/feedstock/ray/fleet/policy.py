"""Computes the size of a fleet from the time that ranks waited: arithmetic, no clock and no Ray.

A waiting rank is an idle GPU, so a fleet grows early and by the missing amount. A surplus worker costs only itself, so
a fleet shrinks late and by one.
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
        out_share: The fleet grows when ranks waited for more than this share of their time, 0 to 1; default 0.05. It is
            the mean over ranks and over ``out_seconds``, because more workers do not help one slow step or one rank
            with a bad connection.
        out_seconds: Seconds over which the share is averaged; default 10. The noise of steps averages out after a few
            of them. Ray takes seconds to start a worker and minutes to start a node, so less time would gain little.
        growth: The fleet grows to ready / (1 - waited), at most by this factor at a time; default 2. The estimate has
            no value while ranks wait nearly all of the time; doubling reaches any size in a few rounds.
        in_share: The fleet shrinks when ranks waited for less than this share, 0 to 1, at every look; default 0.005. It
            is a tenth of ``out_share``: one of eleven workers less costs a tenth, so a fleet that shrank need not grow
            again at once.
        in_seconds: Seconds for which the share must be that low; default 60, longer than most checkpoints and
            evaluations.
        in_seconds_most: Each time that a fleet grows again after it shrank, ``in_seconds`` doubles up to this number,
            so that a fleet between two sizes settles; default 960. A fleet that shrinks twice in a row resets it.
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
    """Computes the size that a fleet should have, several times a second."""

    def __init__(
        self, min_workers: int, max_workers: int, scaling: Scaling, *, size: int | None = None
    ) -> None:
        self._min, self._max, self._scaling = min_workers, max_workers, scaling
        self._size = min(max(min_workers, size or 0), max_workers)
        self._ready = 0  # workers that served at the looks below
        self._looks: deque[tuple[float, float]] = deque()  # (when, mean waited share), newest last
        self._calm_since: float | None = None
        self._patience = scaling.in_seconds
        self._shrank = False  # the last change was a shrinking

    @property
    def size(self) -> int:
        """The last result."""
        return self._size

    def target(self, now: float, waited: Sequence[float], ready: int, pending: int) -> int:
        """Returns the size that the fleet should have from now on.

        Args:
            now: Seconds on any steady clock.
            waited: For each rank that took batches recently, the share of its time that it waited, 0 to 1. If empty,
                nothing is known, and the size stays.
            ready: Workers that serve.
            pending: Workers that were requested and do not serve yet.
        """
        if not waited or ready != self._ready:
            self._start_over(ready)  # with other workers, earlier looks are not valid
        if not waited:
            return self._size
        share = sum(waited) / len(waited)
        self._looks.append((now, share))
        if share >= self._scaling.in_share:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now
        if not pending and self._waits_long(now):
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
        # A fleet of min_workers=0 that has no worker gets its first one, of which no estimate is possible.
        busy = max(1.0 - self._mean(), 1e-9)
        estimate = math.ceil(min(ready / busy, ready * self._scaling.growth))
        grown = min(max(estimate, ready + 1, self._size), self._max)
        if grown > self._size:
            if self._shrank:
                self._patience = min(2 * self._patience, self._scaling.in_seconds_most)
            self._size, self._shrank = grown, False
        self._start_over(ready)

    def _shrink(self, now: float, ready: int, pending: int) -> None:
        # Pending workers go all at once: no rank needs them, and the autoscaler still looks for nodes.
        smaller = ready if pending else self._size - 1
        shrunk = max(min(smaller, self._size), self._min)
        if shrunk < self._size:
            if self._shrank:
                self._patience = self._scaling.in_seconds
            self._size, self._shrank = shrunk, True
        self._calm_since = now

    def _start_over(self, ready: int) -> None:
        self._ready = ready
        self._looks.clear()
        self._calm_since = None
