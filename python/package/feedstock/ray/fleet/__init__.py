"""Workers on a Ray cluster: preprocessing on other machines, of as many as the ranks need.

    from feedstock.ray import Fleet

    fleet = Fleet(pipeline, min_workers=2, max_workers=16, cpus_per_worker=8)

Files, from the outside in: ``fleet`` (the owner's object) and ``handle`` (everyone else's, ``find``); ``renewal`` (a
process's lease, shares and list of workers) with ``waited``; ``controller`` and ``worker``, the actors; ``state``, what
happens next, with ``policy``, how many, and ``placement``, where; ``spec`` and ``sources``, what all of them were told.
"""

from __future__ import annotations

from .fleet import Fleet
from .handle import FleetHandle, find
from .policy import Scaling
from .spec import SERVER_NAME, WORKER_RESOURCE, Credentials

__all__ = ["SERVER_NAME", "WORKER_RESOURCE", "Credentials", "Fleet", "FleetHandle", "Scaling", "find"]
