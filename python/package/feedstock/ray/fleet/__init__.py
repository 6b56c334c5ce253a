"""Workers on a Ray cluster: preprocessing on other machines, on the number of them that the ranks need.

    from feedstock.ray import Fleet

    fleet = Fleet(pipeline, min_workers=2, max_workers=16, cpus_per_worker=8)

Files, from the outside in:

- ``fleet``: the owner's object. ``handle``: the object of other processes, and ``find``.
- ``renewal`` and ``waited``: a process's lease, its waited shares and its list of workers.
- ``controller`` and ``worker``: the actors.
- ``state``: decides the next actions, with ``policy`` (the number of workers) and ``placement`` (their nodes).
- ``spec`` and ``sources``: the options that all of them share.
"""

from __future__ import annotations

from .fleet import Fleet
from .handle import FleetHandle, find
from .policy import Scaling
from .spec import SERVER_NAME, WORKER_RESOURCE, Credentials

__all__ = ["SERVER_NAME", "WORKER_RESOURCE", "Credentials", "Fleet", "FleetHandle", "Scaling", "find"]
