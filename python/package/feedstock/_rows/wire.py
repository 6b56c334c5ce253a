"""Messages between this process and those of the functions: a length, then a pickle. Descriptors follow a message."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("=Q")


def send(connection: socket.socket, message: Any, fd: int | None = None) -> None:
    """Sends a message, and then a descriptor if there is one."""
    body = pickle.dumps(message, protocol=5)
    connection.sendall(_LENGTH.pack(len(body)) + body)
    if fd is not None:
        socket.send_fds(connection, [b"f"], [fd])


def receive(connection: socket.socket) -> Any:
    """Returns the next message; raises EOFError if the other process has closed its side."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))


def receive_fd(connection: socket.socket) -> int:
    """Returns the descriptor that follows a message."""
    data, fds, _, _ = socket.recv_fds(connection, 1, 1)
    if not data or len(fds) != 1:
        raise EOFError
    return fds[0]


def _exactly(connection: socket.socket, size: int) -> bytearray:
    body = bytearray(size)
    view = memoryview(body)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise EOFError
        view = view[count:]
    return body
