"""Python functions over batches, on threads, a few batches ahead of the caller.

    native loader ──batch──▶ pool of function 1 ──result──▶ pool of function 2 ──▶ … ──▶ the caller
                             num_threads threads            num_threads threads

Every function has a separate pool, with the number of threads that it asked for. A pool begins with its batches in
the loader's order, so a function with one thread runs serially and in order, whatever the other functions asked for.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from feedstock import _device

if TYPE_CHECKING:
    from feedstock import _feedstock

# Seconds that a batch is waited for before looking whether the first result is there.
_LOOK_UP = 0.005

# A wait for a function is counted this often, in seconds, so that totals grow while it lasts.
_COUNTED = 0.5

# Where a warning about a long wait points: next() here, Loader._next, the iterator, the caller.
_STACKLEVEL = 4

# A value on its way from one stage to the next, which takes it out: a future that is kept must not keep the value.
_Box = list[Any]


class _Pending(NamedTuple):
    """A batch that the functions are running on."""

    place: tuple[int, int]  # (epoch, position)
    stages: tuple[Future[Any], ...]  # by function; the last one's result is a box
    stream: Any  # of the caller, when the batch was taken

    @property
    def last(self) -> Future[Any]:
        return self.stages[-1]


class Ahead:
    """Batches that functions are running on, in order. Those inside are not delivered yet."""

    def __init__(
        self,
        functions: tuple[tuple[Callable[[Any], Any], int | None], ...],
        convert: Callable[[Any], Any],
    ) -> None:
        self._functions = [(function, threads or 1) for function, threads in functions]
        self._convert = convert
        self._pending: deque[_Pending] = deque()
        self._taken: tuple[int, int] | None = None  # from the library, and not pending yet
        self._ended = False  # no batch comes after those pending: the epoch's end, or an error
        self._pools: list[ThreadPoolExecutor] = []  # by function, once there is a batch
        self._process = os.getpid()
        # Every thread of every function has a batch, and one result waits.
        self.depth = sum(threads for _, threads in self._functions) + 1
        self.ordinal: int | None = None  # of the CUDA device that the batches are on

    def next(self, native: _feedstock.Loader) -> Any:
        """The next result; StopIteration at the epoch's end."""
        if os.getpid() != self._process:
            native.state()  # raises: the parent has these batches
        if not self._pending and not self._ended:
            self._take(native, 0.0)  # waits for a batch, and counts that
        if not self._pending:
            self._ended = False
            raise StopIteration
        self._wait(native)
        while len(self._pending) < self.depth and not self._ended and self._take(native, 0.0):
            pass
        failure = self._pending[0].last.exception()
        if failure is not None:
            raise failure  # and stays pending
        done = self._pending.popleft()
        result = done.last.result().pop()
        if done.stream is not None and (now := _device.consumer_stream(self.ordinal)) != done.stream:
            now.wait_stream(done.stream)  # the caller has gone to another stream meanwhile
            _device.record_stream(result, now)
        return result

    def _wait(self, native: _feedstock.Loader) -> None:
        """Waits until the functions are done with the first batch, and takes others meanwhile."""
        last = self._pending[0].last
        while not last.done():
            begun = time.perf_counter()
            if len(self._pending) < self.depth and not self._ended:
                self._take(native, _LOOK_UP)
            else:
                wait([last], _COUNTED)
            native.add_function_wait(time.perf_counter() - begun)

    def _take(self, native: _feedstock.Loader, seconds: float) -> bool:
        """Takes one more batch from the library if it comes in time; waits for one if nothing is pending."""
        try:
            ready, batch = native.poll(seconds) if self._pending else (True, native.next(_STACKLEVEL))
        except Exception as error:
            # Its turn comes after the batches before it.
            failed: Future[Any] = Future()
            failed.set_exception(error)
            self._pending.append(_Pending(native.state()[:2], (failed,), None))
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
        if not self._pools:
            self._pools = [
                ThreadPoolExecutor(threads, thread_name_prefix=f"feedstock-map-{number}")
                for number, (_, threads) in enumerate(self._functions)
            ]
        place = (batch.epoch, batch.position)
        # The threads have streams of their own, and it is the caller's that goes on with the results.
        stream = _device.consumer_stream(self.ordinal)
        before: Future[Any] = Future()
        before.set_result([batch])
        stages: list[Future[Any]] = []
        for number, pool in enumerate(self._pools):
            before = pool.submit(self._run, number, before, stream)
            stages.append(before)
        self._pending.append(_Pending(place, tuple(stages), stream))

    def _run(self, number: int, before: Future[Any], stream: Any) -> _Box:
        """Runs function ``number`` on the result of the stage before it, and waits for that result. A pool's threads
        take batches in order, so they also wait in order. No pool waits for a later one, so the waits end."""
        value = before.result().pop()
        function = self._functions[number][0]
        with _device.on_stream(stream):
            try:
                return [function(self._convert(value) if number == 0 else value)]
            except StopIteration as stop:  # would pass for the epoch's end
                raise RuntimeError(f"map_python: {function!r} raised StopIteration") from stop

    def first(self) -> tuple[int, int] | None:
        """(epoch, position) of the first batch inside."""
        return self._pending[0].place if self._pending else self._taken

    def is_empty(self) -> bool:
        """Whether everything was handed out."""
        return self.first() is None

    def clear(self) -> None:
        """Lets go of everything inside."""
        for pending in self._pending:
            for stage in pending.stages:
                stage.cancel()
        self._pending.clear()
        self._taken = None
        self._ended = False

    def close(self) -> None:
        """Ends the threads; the next batch starts others."""
        if os.getpid() == self._process:
            for pool in self._pools:
                pool.shutdown(wait=True, cancel_futures=True)
        self._pools = []
