"""A worker in this process."""

from __future__ import annotations

from pathlib import Path

from feedstock import _feedstock


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
