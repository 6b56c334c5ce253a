"""Workers: in this process, and of the command line."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from feedstock import _feedstock

TOKEN = "0123456789abcdef0123"


def worker(data: Path, **options: object) -> _feedstock.Worker:
    """Starts a worker on a free port of 127.0.0.1 that may read ``data``."""
    chosen = {
        "advertise": None,
        "allow": [str(data)],
        "threads": 1,
        "memory_bytes": None,
        "token": None,
        "tls": None,
        "client_ca": None,
        "insecure": False,
        "storage": {},
        **options,
    }
    return _feedstock.Worker("127.0.0.1:0", **chosen)


@dataclass
class Process:
    """A worker of the command line."""

    process: subprocess.Popen[str]
    address: str


@contextlib.contextmanager
def coder(data: Path, *options: str, **environment: str) -> Iterator[Process]:
    """Starts a worker of the command line that may run code on a free port of 127.0.0.1."""
    command = [sys.executable, "-m", "feedstock", "worker", "--listen", "127.0.0.1:0", "--allow", str(data)]
    command += ["--allow-code", "--threads", "1", "--json", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PLACE": "worker", **environment}
    )
    try:
        assert process.stdout is not None
        yield Process(process, json.loads(process.stdout.readline())["address"])
    finally:
        process.kill()
        process.wait()
