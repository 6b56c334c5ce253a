"""Python functions over batches, on threads, a few batches ahead of the caller."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from feedstock import _device

if TYPE_CHECKING:
    from feedstock import _feedstock

# Seconds that a batch is waited for before looking whether the first result is there.
_LOOK_UP = 0.005

# Where a warning about a long wait points: next() here, Loader._next, the iterator, the caller.
_STACKLEVEL = 4


class Ahead:
    """Batches that functions are running on, in order. Those inside are not delivered yet."""

    def __init__(
        self,
        functions: tuple[tuple[Callable[[Any], Any], int | None], ...],
        convert: Callable[[Any], Any],
    ) -> None:
        self._functions = [function for function, _ in functions]
        self._convert = convert
        self._threads = max(threads or 1 for _, threads in functions)
        self._pending: deque[tuple[tuple[int, int], Future[Any], Any]] = deque()
        self._taken: tuple[int, int] | None = None  # from the library, and not pending yet
        self._ended = False  # nothing comes behind what is pending: the epoch's end, or an error
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self.depth = self._threads + 1  # one result waits while every thread works
        self.ordinal: int | None = None  # of the CUDA device that the batches are on

    def next(self, native: _feedstock.Loader) -> Any:
        """The next result; StopIteration at the epoch's end."""
        if os.getpid() != self._process:
            native.state()  # raises: the parent has these batches
        while len(self._pending) < self.depth and not self._ended:
            is_done = bool(self._pending) and self._pending[0][1].done()
            if not self._take(native, 0.0 if is_done else _LOOK_UP) and is_done:
                break
        if not self._pending:
            self._ended = False
            raise StopIteration
        failure = self._pending[0][1].exception()  # waits
        if failure is not None:
            raise failure  # and stays pending
        _, future, stream = self._pending.popleft()
        result = future.result()
        if stream is not None and (now := _device.consumer_stream(self.ordinal)) != stream:
            now.wait_stream(stream)  # the caller has gone to another stream meanwhile
            _device.record_stream(result, now)
        return result

    def _take(self, native: _feedstock.Loader, seconds: float) -> bool:
        """Takes one more batch from the library if it comes in time; waits for one if nothing is pending."""
        try:
            ready, batch = native.poll(seconds) if self._pending else (True, native.next(_STACKLEVEL))
        except Exception as error:
            # Its turn comes behind the batches before it.
            failed: Future[Any] = Future()
            failed.set_exception(error)
            self._pending.append((native.state()[:2], failed, None))
            self._ended = True
            return False
        if batch is not None:
            self._taken = (batch.epoch, batch.position)
            self._submit(batch)
            self._taken = None
        elif ready:
            self._ended = True
        return ready

    def _submit(self, batch: _feedstock.Batch) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="feedstock-map")
        place = (batch.epoch, batch.position)
        # The threads have streams of their own, and it is the caller's that goes on with the results.
        stream = _device.consumer_stream(self.ordinal)
        self._pending.append((place, self._pool.submit(self._run, [batch], stream), stream))

    def _run(self, box: list[_feedstock.Batch], stream: Any) -> Any:
        with _device.on_stream(stream):
            result = self._convert(box.pop())  # the box, which the future keeps, lets the batch go
            for function in self._functions:
                try:
                    result = function(result)
                except StopIteration as stop:  # would pass for the epoch's end
                    raise RuntimeError(f"map_python: {function!r} raised StopIteration") from stop
        return result

    def first(self) -> tuple[int, int] | None:
        """(epoch, position) of the first batch inside."""
        return self._pending[0][0] if self._pending else self._taken

    def is_empty(self) -> bool:
        """Whether everything was handed out."""
        return self.first() is None

    def clear(self) -> None:
        """Lets go of everything inside."""
        for _, future, _ in self._pending:
            future.cancel()
        self._pending.clear()
        self._taken = None
        self._ended = False

    def close(self) -> None:
        """Ends the threads; the next batch starts others."""
        if self._pool is not None and os.getpid() == self._process:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None
