"""Runs Python functions on batches, on threads, a few batches ahead of the caller.

Functions of ``map_python`` run in these threads. For ``map_rows``, a thread waits for the processes or threads of a
stage (``_rows``).

    native loader ──batch──▶ pool of function 1 ──result──▶ pool of function 2 ──▶ … ──▶ the caller
                             num_threads threads            num_threads threads

Every function has a separate pool with its number of threads. A pool starts on batches in the loader's order, so a
function with one thread runs serially and in order, for any number of threads of the others.

The threads are daemons, unlike those of ``ThreadPoolExecutor``, which Python joins at its exit without a limit. A
function that never returns would keep ``close()`` and the process waiting. ``close()`` waits for at most 10 s and then
warns.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from feedstock import _device

if TYPE_CHECKING:
    from feedstock import _feedstock

# Seconds to wait for a batch before checking for the first result.
_LOOK_UP = 0.005

# Seconds after which a wait for a function is counted, so that counters grow during the wait.
_COUNTED = 0.5

# Seconds that close() waits for functions that are running.
_CLOSE = 10.0

# The line that a warning about a long wait names: above next() here, Loader._take, Loader._next and the iterator.
_STACKLEVEL = 5

# A value between two stages. The next stage removes it from the list, so that a future does not keep the value alive.
_Box = list[Any]


class Stage(Protocol):
    """What has processes or threads to start and end, other than those of this module."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def join(self, until: float) -> bool: ...


class Function(NamedTuple):
    """A function of batches."""

    call: Callable[[Any], Any]
    threads: int
    name: str  # in messages
    stage: Stage | None = None


def functions_of(given: Iterable[tuple[Callable[[Any], Any], int | None]]) -> list[Function]:
    """Returns functions of ``map_python`` with their threads."""
    return [Function(call, threads or 1, f"map_python: {call!r}") for call, threads in given]


class _Pending(NamedTuple):
    """A batch on which functions run."""

    place: tuple[int, int]  # (epoch, position)
    stages: tuple[Future[Any], ...]  # by function; the last one's result is a box
    stream: Any  # of the caller, when the batch was taken

    @property
    def last(self) -> Future[Any]:
        return self.stages[-1]


# A future, and the call that gives its result.
_Task = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class _Pool:
    """Threads that run one function, on batches in order."""

    def __init__(self, number: int, threads: int) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads = [
            threading.Thread(
                target=_work, args=(self._tasks,), name=f"feedstock-map-{number}_{thread}", daemon=True
            )
            for thread in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        # The threads do not keep the pool alive, so they also end with a loader that is not closed.
        self._end = weakref.finalize(self, _end, self._tasks, threads, os.getpid())
        self._end.atexit = False

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((future, call, arguments))
        return future

    def end(self) -> None:
        """Cancels the calls that have not begun. The threads end after those that run."""
        self._end.detach()  # at Python's exit, calling it would do nothing
        _end(self._tasks, len(self._threads), os.getpid())

    def join(self, until: float) -> bool:
        """Waits for the threads until ``until``, of ``time.monotonic``. Returns whether all have ended."""
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in others)


def _work(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        _call(*task)
        del task  # a batch must not stay alive until the next one


def _call(future: Future[Any], call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call(*arguments)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _end(tasks: SimpleQueue[_Task | None], threads: int, process: int) -> None:
    if os.getpid() != process:
        return  # a fork has none of the threads
    while True:
        try:
            task = tasks.get_nowait()
        except Empty:
            break
        if task is not None:
            task[0].cancel()
    for _ in range(threads):
        tasks.put(None)


class Ahead:
    """The batches on which functions run, in order. They are not delivered yet."""

    def __init__(
        self,
        functions: Sequence[Function],
        convert: Callable[[Any], Any],
        deliver: Callable[[tuple[int, int]], None] | None = None,
    ) -> None:
        self._functions = functions
        self._convert = convert
        self._deliver = deliver  # before the caller gets a batch; it may refuse that
        self._pending: deque[_Pending] = deque()
        self._taken: tuple[int, int] | None = None  # from the library, and not pending yet
        self._ended = False  # no batch comes after those pending: the epoch's end, or an error
        self._pools: list[_Pool] = []  # by function, once there is a batch
        self._process = os.getpid()
        # Every thread of every function has a batch, and one result waits.
        self.depth = sum(function.threads for function in functions) + 1
        self.ordinal: int | None = None  # of the CUDA device that the batches are on
        self.place: tuple[int, int] = (0, 0)  # (epoch, position) of the last result

    def next(self, native: _feedstock.Loader) -> Any:
        """Returns the next result; raises StopIteration at the epoch's end."""
        if os.getpid() != self._process:
            native.state()  # raises ForkError: the parent has these batches
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
        if self._deliver is not None:
            self._deliver(self._pending[0].place)
        done = self._pending.popleft()
        self.place = done.place
        result = done.last.result().pop()
        if done.stream is not None and (now := _device.consumer_stream(self.ordinal)) != done.stream:
            now.wait_stream(done.stream)  # the caller has changed the stream meanwhile
            _device.record_stream(result, now)
        return result

    def _wait(self, native: _feedstock.Loader) -> None:
        """Waits until the functions have finished the first batch, and takes other batches meanwhile."""
        last = self._pending[0].last
        while not last.done():
            begun = time.perf_counter()
            if len(self._pending) < self.depth and not self._ended:
                self._take(native, _LOOK_UP)
            else:
                wait([last], _COUNTED)
            native.add_function_wait(time.perf_counter() - begun)

    def _take(self, native: _feedstock.Loader, seconds: float) -> bool:
        """Takes a batch from the library if there is one within ``seconds``; waits for it if nothing is pending."""
        try:
            ready, batch = native.poll(seconds) if self._pending else (True, native.next(_STACKLEVEL))
        except Exception as error:
            # The error is raised after the batches before it.
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
            for function in self._functions:
                if function.stage is not None:
                    function.stage.begin()
            self._pools = [_Pool(number, function.threads) for number, function in enumerate(self._functions)]
        place = (batch.epoch, batch.position)
        # Results are used on the caller's stream, and torch's current stream differs between threads.
        stream = _device.consumer_stream(self.ordinal)
        before: Future[Any] = Future()
        before.set_result([batch])
        stages: list[Future[Any]] = []
        for number, pool in enumerate(self._pools):
            before = pool.submit(self._run, number, before, stream)
            stages.append(before)
        self._pending.append(_Pending(place, tuple(stages), stream))

    def _run(self, number: int, before: Future[Any], stream: Any) -> _Box:
        """Waits for the result of the stage before, and runs function ``number`` on it.

        A pool's threads take batches in order, so they also wait in order. No pool waits for a later one, so the waits
        end.
        """
        value = before.result().pop()
        function = self._functions[number]
        with _device.on_stream(stream):
            try:
                return [function.call(self._convert(value) if number == 0 else value)]
            except StopIteration as stop:  # would look like the epoch's end
                raise RuntimeError(f"{function.name} raised StopIteration") from stop

    def first(self) -> tuple[int, int] | None:
        """Returns (epoch, position) of the first batch that was not delivered."""
        return self._pending[0].place if self._pending else self._taken

    def is_empty(self) -> bool:
        """Returns whether all batches were delivered."""
        return self.first() is None

    def clear(self) -> None:
        """Discards all batches."""
        for pending in self._pending:
            for stage in pending.stages:
                stage.cancel()
        self._pending.clear()
        self._taken = None
        self._ended = False

    def close(self) -> None:
        """Ends the threads. The next batch starts new ones.

        Waits up to 10 s for functions that are running. After that it warns, and their results are discarded.
        """
        pools, self._pools = self._pools, []
        if os.getpid() != self._process:
            return
        for pool in pools:
            pool.end()
        for function in self._functions:
            if function.stage is not None:
                function.stage.end()
        until = time.monotonic() + _CLOSE
        for number, function in enumerate(self._functions):
            # Before the first batch there are no pools.
            has_ended = number >= len(pools) or pools[number].join(until)
            if function.stage is not None:
                has_ended = function.stage.join(until) and has_ended
            if not has_ended:
                warnings.warn(
                    f"{function.name} is still running {_CLOSE:g} s after its loader was closed; its result "
                    "is discarded",
                    RuntimeWarning,
                    stacklevel=3,
                )
                return
