"""Mean time of an optimizer step, from the end of one to the end of the next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from feedstock._device import torch_on_cuda

# Steps that are not timed after a start or a change: allocators, autotuning, the latency of the first batch.
WARM_UP_STEPS = 3


class StepTimer:
    """Times whole steps, including the wait for data and the optimizer, until the next step can begin.

    CUDA queues work, so the clock does not see the end of a step. The timer synchronizes the device at the beginning
    and at the end of a series of steps, and divides the time by their number.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._steps = 0
        self._elapsed_s = 0.0
        self._mark: float | None = None  # the end of the last step, while timing
        self._to_skip = WARM_UP_STEPS

    def warm_up(self) -> None:
        """Discards the times; the next steps do not count."""
        self._steps, self._elapsed_s, self._mark = 0, 0.0, None
        self._to_skip = WARM_UP_STEPS

    def pause(self) -> None:
        """Excludes the time until the end of the next step."""
        self._mark = None

    def step(self) -> None:
        """Records the end of a step."""
        if self._to_skip > 0:
            self._to_skip -= 1
            return
        if self._mark is None:
            self._mark = self._now()
            return
        now = self._clock()
        self._elapsed_s += now - self._mark
        self._steps += 1
        self._mark = now

    def take(self) -> tuple[int, float]:
        """Returns the steps timed since the last call, and their seconds."""
        if self._mark is not None:
            now = self._now()
            self._elapsed_s += now - self._mark
            self._mark = now
        taken = (self._steps, self._elapsed_s)
        self._steps, self._elapsed_s = 0, 0.0
        return taken

    def resume(self) -> None:
        """Excludes the time since `take`."""
        if self._mark is not None:
            self._mark = self._clock()

    @contextlib.contextmanager
    def untimed(self) -> Iterator[None]:
        """Excludes the time inside the block."""
        start = self._now()
        try:
            yield
        finally:
            if self._mark is not None:
                self._mark += self._now() - start

    def _now(self) -> float:
        torch = torch_on_cuda()
        if torch is not None:
            torch.cuda.synchronize()
        return self._clock()
