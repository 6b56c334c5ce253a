"""The CPUs that Ray assigned to this process."""

from __future__ import annotations

import sys


def assigned_threads() -> int | None:
    """Returns the CPUs that Ray reserved for this task or actor, as CPU threads of a loader; None outside of both.

    Only numbers above 1 count as a limit. Ray reserves 1 by default, also for a trainer that decodes for eight GPUs.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    try:
        cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 0)
    except AssertionError:  # how Ray reports that the process is a driver, which has no reservation
        return None
    return int(cpus) if cpus > 1 else None
