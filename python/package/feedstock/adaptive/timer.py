"""Mean time of an optimizer step, from the end of one to the end of the next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from feedstock._device import torch_on_cuda

WARM_UP_STEPS = 3  # not timed after a start or a change: allocators, autotuning, the first batch's latency


class StepTimer:
    """Times whole steps, waiting for data and the optimizer included: what counts is when the next one can
    begin.

    On a CUDA device a step's end means little to the clock, since work is queued. So the device is waited for
    where a stretch of timed steps begins and where it is read, and what lies between is divided by the steps.
    clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._steps = 0
        self._elapsed_s = 0.0
        self._mark: float | None = None  # the end of the last step, while timing
        self._to_skip = WARM_UP_STEPS

    def warm_up(self) -> None:
        """Drops what was timed; the next steps do not count."""
        self._steps, self._elapsed_s, self._mark = 0, 0.0, None
        self._to_skip = WARM_UP_STEPS

    def pause(self) -> None:
        """Time passes that belongs to no step; the next step's end only starts the clock again."""
        self._mark = None

    def step(self) -> None:
        """A step ended."""
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
        """Steps timed since the last take, and their seconds."""
        if self._mark is not None:
            now = self._now()
            self._elapsed_s += now - self._mark
            self._mark = now
        taken = (self._steps, self._elapsed_s)
        self._steps, self._elapsed_s = 0, 0.0
        return taken

    def resume(self) -> None:
        """Ends what `take` began: the time since belongs to no step."""
        if self._mark is not None:
            self._mark = self._clock()

    @contextlib.contextmanager
    def untimed(self) -> Iterator[None]:
        """What happens inside belongs to no step."""
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
