"""What functions print, as log messages. A function that prints gigabytes costs neither memory nor lines of logs."""

from __future__ import annotations

import logging
import os
import time

log = logging.getLogger("feedstock.rows")

#: Lines of a process that are logged in a second, of stdout and stderr each.
LINES_PER_SECOND = 20

#: Bytes of a line that are logged.
LINE_BYTES = 2000

_READ_BYTES = 1 << 16


class Output:
    """One stream of one process."""

    def __init__(self, fd: int, level: int, step: str, process: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._level, self._step, self._process = level, step, process
        self._begun = b""  # a line without its end
        self._cut = False  # the rest of the line is left out
        self._second, self._lines, self._dropped = 0.0, 0, 0

    def drain(self) -> bool:
        """Logs up to 64 KiB that are there. Returns whether the stream is still open."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return True
        self._feed(data, time.monotonic())
        return bool(data)

    def finish(self) -> None:
        """Logs what is left, at most 1 MiB, and closes the stream."""
        for _ in range(16):
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            self._feed(data, time.monotonic())
        if self._begun:
            self._line(self._begun)
        self._log_dropped()
        os.close(self.fd)

    def _feed(self, data: bytes, now: float) -> None:
        if now - self._second >= 1.0:
            self._log_dropped()
            self._second, self._lines = now, 0
        if self._lines >= LINES_PER_SECOND:
            self._dropped += data.count(b"\n")
            self._begun, self._cut = b"", not data.endswith(b"\n")
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            if not self._cut:
                self._line(self._begun + line)
            self._begun, self._cut = b"", False
        if not self._cut:
            self._begun += rest
            if len(self._begun) > LINE_BYTES:
                self._line(self._begun)
                self._begun, self._cut = b"", True

    def _line(self, line: bytes) -> None:
        if self._lines >= LINES_PER_SECOND:
            self._dropped += 1
            return
        self._lines += 1
        text = line[:LINE_BYTES].decode(errors="replace").rstrip("\r")
        log.log(self._level, "%s in process %d: %s", self._step, self._process, text)

    def _log_dropped(self) -> None:
        if self._dropped:
            log.log(
                self._level,
                "%s in process %d printed %d more lines; %d in a second are logged",
                self._step,
                self._process,
                self._dropped,
                LINES_PER_SECOND,
            )
            self._dropped = 0
