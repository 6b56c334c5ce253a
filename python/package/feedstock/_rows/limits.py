"""What a process of a function on a worker may take and read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of each process. A rank's own processes have none.

    Args:
        memory_bytes: Bytes that it may allocate, of its heap and other private memory; None: no limit. An allocation
            beyond fails, in Python by ``MemoryError``. Linux only.
        hidden: Variables of the environment that it does not get.
    """

    memory_bytes: int | None = None
    hidden: tuple[str, ...] = ()

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns an environment without the hidden variables."""
        return {name: value for name, value in environment.items() if name not in self.hidden}


def apply(memory_bytes: int | None) -> None:
    """Limits this process. It writes no core dumps, which would hold samples."""
    import resource

    with contextlib.suppress(OSError, ValueError):  # a lower limit of the system stays
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None and sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


NO_LIMITS = Limits()
