"""On which node the next worker goes: arithmetic, no Ray.

Ray's own "SPREAD" goes round the nodes without looking at who is there, and its default packs by load, not by fleet; a
placement group cannot grow. So the controller names a node that has room now, and only where there is none leaves it
to Ray, which then asks its autoscaler for one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

Placement = Literal["SPREAD", "PACK"]

#: Node id → resource → what is free of it.
Free = Mapping[str, Mapping[str, float]]


def choose(
    free: Free,
    need: Mapping[str, float],
    ours: Mapping[str, int],
    placement: Placement,
    avoid: Collection[str] = (),
) -> str | None:
    """The node for one more worker; None where none has room.

    ``"SPREAD"`` takes the node with the fewest of the fleet's workers (``ours``), so that one lost node costs little
    and every node's network carries its part; ``"PACK"`` the one with the most, so that other nodes become idle. Among
    equals, the one with the most, or the least, CPUs free; then by id, so that the answer is always the same.
    """
    roomy = [node for node, has in free.items() if node not in avoid and _fits(need, has)]
    sign = 1 if placement == "SPREAD" else -1

    def rank(node: str) -> tuple[float, float, str]:
        return sign * ours.get(node, 0), -sign * free[node].get("CPU", 0.0), node

    return min(roomy, key=rank, default=None)


def without(free: Free, node: str, need: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """What is free once a worker has gone to ``node``."""
    left = {other: dict(has) for other, has in free.items()}
    for resource, amount in need.items() if node in left else ():
        left[node][resource] = left[node].get(resource, 0.0) - amount
    return left


def _fits(need: Mapping[str, float], has: Mapping[str, float]) -> bool:
    return all(has.get(resource, 0.0) >= amount - 1e-6 for resource, amount in need.items())
