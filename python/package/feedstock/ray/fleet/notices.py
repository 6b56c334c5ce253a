"""The nodes that are about to leave the cluster, after a spot notice or a decision of the autoscaler."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import ray

logger: logging.Logger = logging.getLogger("feedstock.ray.fleet")

#: Seconds between two looks. Clouds give notice 30 s or more before they take a node.
LOOK_SECONDS = 1.0


class Notices:
    """Asks Ray's head which nodes it drains."""

    def __init__(self) -> None:
        self._client: Any = None
        self._next = 0.0
        self._failed = False
        self._known: set[str] = set()

    def look(self, now: float) -> dict[str, float]:
        """Returns the seconds that each draining node has left, infinity without a deadline; empty between looks."""
        if now < self._next:
            return {}
        self._next = now + LOOK_SECONDS
        try:
            if self._client is None:
                # A developers' API, but the only one; Ray Serve uses it for the same.
                self._client = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
            deadlines = self._client.get_draining_nodes(timeout=LOOK_SECONDS)
        except Exception as error:
            if not self._failed:
                logger.warning(
                    "Ray does not report draining nodes, so a lost node is noticed late: %s", error
                )
            self._failed = True
            return {}
        self._failed = False
        left = {node: remaining(deadline, 1000.0 * time.time()) for node, deadline in deadlines.items()}
        for node in left.keys() - self._known:
            logger.warning(
                "node %s leaves the cluster (seconds left: %.0f); its workers are replaced", node, left[node]
            )
        self._known = set(left)
        return left


def remaining(deadline_ms: float, now_ms: float) -> float:
    """Returns the seconds until a deadline in milliseconds since 1970; infinity for Ray's 0, which means none."""
    return max(0.0, (deadline_ms - now_ms) / 1000.0) if deadline_ms else math.inf
