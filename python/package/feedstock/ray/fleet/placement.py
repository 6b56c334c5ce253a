"""Chooses the node of the next worker: arithmetic, no Ray.

Ray's "SPREAD" visits nodes in turn regardless of their load, its default packs by load, not by fleet, and a placement
group cannot grow. So the controller names a node with room. If there is none, Ray places the worker and requests a node
from its autoscaler.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

Placement = Literal["SPREAD", "PACK"]

#: Node id → resource → free amount.
Free = Mapping[str, Mapping[str, float]]


def matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Returns whether a node's labels fit a label selector of Ray.

    A condition is a value, ``in(a, b)``, or one of these after ``!``, which a node without the label fits, too.
    """
    return all(_meets(labels.get(label), condition) for label, condition in selector.items())


def _meets(value: str | None, condition: str) -> bool:
    wanted = condition.removeprefix("!").strip()
    values = wanted[3:-1].split(",") if wanted.startswith("in(") and wanted.endswith(")") else [wanted]
    return (value in [one.strip() for one in values]) != condition.startswith("!")


def choose(
    free: Free,
    need: Mapping[str, float],
    ours: Mapping[str, int],
    placement: Placement,
    avoid: Collection[str] = (),
) -> str | None:
    """Returns the node for one more worker; None if none has room.

    ``"SPREAD"`` takes the node with the fewest of the fleet's workers (``ours``), so that one lost node costs little
    and the load is spread over the nodes' networks. ``"PACK"`` takes the node with the most, so that other nodes become
    idle. Among equals, it is the node with the most (``"PACK"``: fewest) free CPUs, then the smallest id.
    """
    roomy = [node for node, has in free.items() if node not in avoid and _fits(need, has)]
    sign = 1 if placement == "SPREAD" else -1

    def rank(node: str) -> tuple[float, float, str]:
        return sign * ours.get(node, 0), -sign * free[node].get("CPU", 0.0), node

    return min(roomy, key=rank, default=None)


def without(free: Free, node: str, need: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Returns the free resources after a worker has gone to ``node``."""
    left = {other: dict(has) for other, has in free.items()}
    for resource, amount in need.items() if node in left else ():
        left[node][resource] = left[node].get(resource, 0.0) - amount
    return left


def _fits(need: Mapping[str, float], has: Mapping[str, float]) -> bool:
    return all(has.get(resource, 0.0) >= amount - 1e-6 for resource, amount in need.items())
