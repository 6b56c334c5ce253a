"""Notices that a rank's node leaves the cluster, as Ray Train reports them."""

from __future__ import annotations

import sys

from ._check import whole


class PreemptionNotice:
    """Reports once when the node of a rank is about to leave, so that a training loop saves a checkpoint in time.

        notice = PreemptionNotice()
        for batch in loader:
            …
            if notice.due() or step % 500 == 0:
                ray.train.report(metrics, checkpoint=…)

    Ray Train watches for draining nodes: spot notices, and decisions of the autoscaler. All ranks must call
    :meth:`due` equally often, because every ``every``-th call asks ``ray.train.get_preemption_info``, for which ranks
    wait for each other. They get the same answer. Outside of a Ray Train worker, and with a Ray that lacks the
    function (before 2.58), nothing is ever due.

    Args:
        every: Steps between two questions; default 10. ``every`` steps and a checkpoint must take less time than the
            notice leaves: clouds give 30 s to 2 minutes.

    Example:
        >>> from feedstock.ray import PreemptionNotice
        >>> notice = PreemptionNotice(every=1)
        >>> notice.due()  # outside of Ray Train
        False
    """

    def __init__(self, every: int = 10) -> None:
        self._every = whole("every", every, 1)
        self._calls = 0
        self._known: set[str] = set()
        self._asks = _in_train_worker()

    def due(self) -> bool:
        """Returns True once for each node with ranks that is about to leave. Call it after every step, on all ranks."""
        self._calls += 1
        if not self._asks or self._calls % self._every:
            return False
        import ray.train

        info = ray.train.get_preemption_info()
        if info is None:
            return False
        nodes = set(info.preempted_node_to_ranks)
        new = nodes - self._known
        self._known |= nodes
        return bool(new)


def _in_train_worker() -> bool:
    if "ray.train" not in sys.modules:
        return False  # a worker of Ray Train has imported it
    import ray.train
    from ray.train.utils import _in_ray_train_worker

    return hasattr(ray.train, "get_preemption_info") and bool(_in_ray_train_worker())
