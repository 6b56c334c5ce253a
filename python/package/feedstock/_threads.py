"""CPUs that Ray assigned to this process."""

from __future__ import annotations

import sys


def assigned_threads() -> int | None:
    """The CPUs that Ray reserved for this task or actor, as CPU threads of a loader; None outside Ray.

    1 is what Ray reserves where nothing was asked for, also for a trainer with eight GPUs' worth of decoding to do. So
    only numbers above 1 are taken as a limit.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 0)
    return int(cpus) if cpus > 1 else None
