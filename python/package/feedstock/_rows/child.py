"""The process that runs a function: reads rows from shared memory and writes results there."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from feedstock._rows import limits
from feedstock._rows.call import Call, failure
from feedstock._rows.generator import generator
from feedstock._rows.layout import read_row
from feedstock._rows.messages import Map, Progress, Ran, Run, Start, Started, Tried, Try, Unmap
from feedstock._rows.spec import ResultError, arrays_of, values_of
from feedstock._rows.tree import Flat
from feedstock._rows.wire import receive, receive_fd, send

_PR_SET_PDEATHSIG = 1


def main(fd: int, parent: int) -> None:
    """Serves the process ``parent`` over the socket ``fd`` until it closes its side."""
    _end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the parent decides
    faulthandler.enable()  # a crash in C prints where it was, which the parent logs
    with socket.socket(fileno=os.dup(fd)) as connection:
        os.close(fd)
        try:
            _serve(connection)
        except (EOFError, ConnectionError):
            return  # the parent ended, or closed its loader


def _end_with(parent: int) -> None:
    """Asks the kernel to kill this process when its parent ends, also in the middle of a row."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def _serve(connection: socket.socket) -> None:
    start: Start = receive(connection)
    progress = Progress(_mapped(receive_fd(connection), Progress.FORMAT.size))
    sys.path[:] = start.sys_path
    if start.is_limited:
        limits.apply(start.memory_bytes)
    try:
        fn = pickle.loads(start.fn)
    except BaseException as error:
        send(connection, Started(failure(error)))
        return
    _use_one_thread()
    send(connection, Started(None))
    server = _Server(connection, progress, start, fn)
    while True:
        server.answer(receive(connection))
        _use_one_thread()  # the function may have imported them meanwhile


def _mapped(fd: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)


def _use_one_thread() -> None:
    """Has libraries use one thread, since each CPU has a process. OMP and BLAS read variables of the environment."""
    torch: Any = sys.modules.get("torch")
    cv2: Any = sys.modules.get("cv2")
    if hasattr(torch, "set_num_threads") and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    if hasattr(cv2, "setNumThreads") and cv2.getNumThreads() != 1:
        cv2.setNumThreads(1)


class _Server:
    def __init__(
        self, connection: socket.socket, progress: Progress, start: Start, fn: Callable[..., Any]
    ) -> None:
        self._connection = connection
        self._progress = progress
        self._seed, self._number = start.seed, start.number
        self._call = Call(fn)
        self._areas: dict[int, mmap.mmap] = {}

    def answer(self, message: Any) -> None:
        match message:
            case Map():
                self._areas[message.number] = _mapped(receive_fd(self._connection), message.size)
            case Unmap():
                for number in message.numbers:
                    del self._areas[number]
            case Run():
                send(self._connection, self._run(message))
            case Try():
                send(self._connection, self._try(message))

    def _run(self, run: Run) -> Ran:
        area, layout = run.inputs
        memory = self._areas[area]
        arrays = layout.arrays(memory)
        area, layout_of_results = run.results
        results = layout_of_results.arrays(self._areas[area])
        failures, sent = {}, {}
        for row, sample in run.rows:
            self._progress.begin(row)
            values = read_row(layout, arrays, memory, row)
            rng = generator(self._seed, run.epoch, sample, self._number)
            into = {name: array[row : row + 1].reshape(array.shape[1:]) for name, array in results.items()}
            others: dict[str, Any] = {}
            reason = self._call.into(values, rng, run.outputs, into, others)
            self._progress.idle()
            if reason is not None:
                failures[row] = reason
            elif others:
                sent[row] = others
        return Ran(failures, sent)

    def _try(self, one: Try) -> Tried:
        self._progress.begin(0)
        try:
            rng = generator(self._seed, one.epoch, one.sample, self._number)
            result = self._call(one.row, rng)
            if isinstance(result, Flat):
                tried = Tried(values_of(result), None, result.tree)
            else:
                tried = Tried(arrays_of(result), None)
        except ResultError as error:
            tried = Tried({}, str(error))
        except BaseException as error:
            tried = Tried({}, failure(error))
        self._progress.idle()
        return tried
