"""Decides a fleet's next actions: events in, actions out; no clock, no threads, no Ray.

    starting ──started──▶ serving ──surplus──▶ draining ──drained──▶ gone
        └──────────────────── gone, silent, or late: another one is started ────▶

``tick`` compares the workers with those that there should be. It returns each action once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .policy import Policy
from .spec import Timing

#: A worker that served for this time has started successfully.
PROVEN_SECONDS = 30.0


class Phase(Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass
class Member:
    """A worker, from its request to its end."""

    number: int
    phase: Phase
    since: float  # in this phase
    heard: float  # time of the last beat
    deadline: float | None = None  # for starting or draining
    node: str | None = None
    address: str | None = None
    pid: int | None = None
    status: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Start:
    number: int
    avoid: frozenset[str]  # nodes
    anywhere: bool  # on any node that Ray chooses, with room or not


@dataclass(frozen=True)
class Drain:
    number: int
    seconds: float


@dataclass(frozen=True)
class Kill:
    number: int
    why: str | None  # None: not a failure


@dataclass(frozen=True)
class Exit:
    why: str


Action = Start | Drain | Kill | Exit


@dataclass
class _Rank:
    heard: float
    waited: tuple[float, ...]


class FleetState:
    """The workers of a fleet, the ranks that use them, and the lease."""

    def __init__(
        self, policy: Policy, timing: Timing, lease_seconds: float, drain_seconds: float, now: float
    ) -> None:
        self._policy, self._timing = policy, timing
        self._lease_seconds, self._drain_seconds = lease_seconds, drain_seconds
        self._lease_ends = now + lease_seconds
        self._workers: dict[int, Member] = {}
        self._ranks: dict[str, _Rank] = {}
        self._next = 1
        self._version = 0
        self._avoid: dict[str, float] = {}  # node → until
        self._failures = 0  # successive failures of workers that served for less than PROVEN_SECONDS
        self._start_at = now
        self._anywhere = False
        self._ending: str | None = None
        self._said_exit = False
        self._actions: list[Action] = []
        self.failure: str | None = None
        self.refusal: str | None = None
        self.samples: int = 0

    # The state

    @property
    def workers(self) -> list[Member]:
        return list(self._workers.values())

    @property
    def addresses(self) -> list[str]:
        """The addresses of serving workers, sorted."""
        return sorted(w.address for w in self._in(Phase.SERVING) if w.address is not None)

    @property
    def version(self) -> int:
        """A number that changes whenever ``addresses`` does."""
        return self._version

    @property
    def size(self) -> int:
        """The number of workers that there should be."""
        return 0 if self._ending else self._policy.size

    @property
    def waited(self) -> list[float]:
        """The last waited shares of all ranks that took batches recently."""
        return [share for rank in self._ranks.values() for share in rank.waited]

    @property
    def ranks(self) -> int:
        return len(self._ranks)

    def on_nodes(self) -> Counter[str]:
        """Returns the number of workers by node, starting ones included."""
        return Counter(worker.node for worker in self._workers.values() if worker.node is not None)

    def _in(self, phase: Phase) -> list[Member]:
        return [worker for worker in self._workers.values() if worker.phase is phase]

    # Events

    def adopted(self, now: float, number: int) -> None:
        """Adds a worker that is older than this state."""
        deadline = now + self._timing.adopt
        self._workers[number] = Member(number, Phase.STARTING, now, now, deadline)
        self._next = max(self._next, number + 1)

    def placed(self, now: float, number: int, node: str | None) -> None:
        """Records the node of a starting worker; None if Ray chooses it, which may wait for a node without limit."""
        worker = self._workers.get(number)
        if worker is not None and worker.phase is Phase.STARTING:
            worker.node = node
            worker.deadline = None if node is None else now + self._timing.place

    def started(self, now: float, number: int, node: str, address: str, pid: int | None = None) -> None:
        """Records that a worker serves."""
        worker = self._workers.get(number)
        if worker is None or worker.phase is not Phase.STARTING:
            return
        worker.phase, worker.since, worker.heard = Phase.SERVING, now, now
        worker.node, worker.address, worker.pid, worker.deadline = node, address, pid, None
        self._anywhere, self.refusal = False, None
        self._version += 1

    def beat(self, now: float, number: int, status: dict[str, Any]) -> bool:
        """Records that a worker is alive; returns False if it does not belong to the fleet and should end."""
        worker = self._workers.get(number)
        if worker is None:
            return False
        worker.heard = now
        self.samples += max(0, status.get("samples", 0) - worker.status.get("samples", 0))
        worker.status = status
        return True

    def gone(self, now: float, number: int, why: str, *, refused: bool = False) -> None:
        """Records that a worker's process ended or did not start; ``refused``: because of its configuration."""
        worker = self._remove(number)
        if worker is None or worker.phase is Phase.DRAINING:
            return
        self.failure = f"worker {number}: {why}"
        self.refusal = why if refused else None
        if worker.node is not None:
            self._avoid[worker.node] = now + self._timing.avoid
        if worker.phase is Phase.SERVING and now - worker.since >= PROVEN_SECONDS:
            self._failures = 0
        elif now >= self._start_at:  # several at once count once
            wait = self._timing.backoff * 2.0 ** min(self._failures, 16)
            self._start_at = now + min(wait, self._timing.backoff_most)
            self._failures += 1

    def leaving(self, now: float, nodes: Mapping[str, float]) -> None:
        """Moves the fleet off ``nodes``, which leave the cluster in that many seconds.

        Serving workers are drained for half of that time at most, so that the handover ends before the node does.
        Others are requested elsewhere at once.
        """
        for node, seconds in nodes.items():
            self._avoid[node] = now + max(self._timing.avoid, min(seconds, self._timing.avoid_most))
        for worker in self.workers:
            if worker.node is None or worker.node not in nodes or self._ending is not None:
                continue
            if worker.phase is Phase.SERVING:
                self._drain(now, worker, min(self._drain_seconds, nodes[worker.node] / 2))
            elif worker.phase is Phase.STARTING:
                self._kill(worker, "its node leaves the cluster")

    def drained(self, number: int) -> None:
        """Records that no rank reads from a draining worker any more, or that its time is over."""
        worker = self._workers.get(number)
        if worker is not None and worker.phase is Phase.DRAINING:
            self._kill(worker, None)

    def renew(self, now: float, rank: str | None, waited: Sequence[float]) -> None:
        """Records a renewal by a rank or the owner (None); ``waited`` has a share for each loader in use."""
        self._lease_ends = max(self._lease_ends, now + self._lease_seconds)
        if rank is not None:
            self._ranks[rank] = _Rank(now, tuple(waited))

    def end(self, now: float, why: str, drain_seconds: float | None = None) -> None:
        """Ends the fleet: drains the workers, for at most ``drain_seconds``."""
        if self._ending is not None:
            return
        self._ending = why
        seconds = self._drain_seconds if drain_seconds is None else drain_seconds
        for worker in self._in(Phase.STARTING):
            self._kill(worker, None)
        for worker in self._in(Phase.SERVING):
            self._drain(now, worker, seconds)

    def tick(self, now: float) -> list[Action]:
        """Returns the actions to do now."""
        for name in [name for name, rank in self._ranks.items() if now - rank.heard > self._timing.rank]:
            del self._ranks[name]
        if now > self._lease_ends:
            self.end(now, f"no process renewed the lease for {self._lease_seconds:g} s")
        self._drop_late(now)
        if self._ending is None:
            self._resize(now)
        elif not self._workers and not self._said_exit:
            self._said_exit = True
            self._actions.append(Exit(self._ending))
        actions, self._actions = self._actions, []
        return actions

    # Decisions

    def _drop_late(self, now: float) -> None:
        for worker in self.workers:
            silent = now - worker.heard
            if worker.phase is Phase.STARTING:
                if worker.deadline is not None and now > worker.deadline:
                    self._anywhere = True
                    self._kill(worker, f"it did not start within {now - worker.since:.0f} s")
            elif worker.phase is Phase.SERVING and silent > self._timing.worker:
                self._kill(worker, why := f"it was silent for {silent:.0f} s")
                self.failure = f"worker {worker.number}: {why}"
                if worker.node is not None:
                    self._avoid[worker.node] = now + self._timing.avoid
            elif worker.phase is Phase.DRAINING and worker.deadline is not None and now > worker.deadline:
                self._kill(worker, "it did not report that it was drained")

    def _resize(self, now: float) -> None:
        serving, starting = self._in(Phase.SERVING), self._in(Phase.STARTING)
        target = self._policy.target(now, self.waited, len(serving), len(starting))
        missing = target - len(serving) - len(starting)
        if missing > 0 and now >= self._start_at:
            self._avoid = {node: until for node, until in self._avoid.items() if now < until}
            for _ in range(missing):
                worker = Member(self._next, Phase.STARTING, now, now)
                self._workers[worker.number] = worker
                self._next += 1
                self._actions.append(Start(worker.number, frozenset(self._avoid), self._anywhere))
        on_nodes = self.on_nodes()
        for _ in range(-missing):
            if starting:
                self._kill(starting.pop(), None)
                continue
            # From the node with the fewest, which then becomes idle soonest, so that the autoscaler can remove it.
            worker = min(serving, key=lambda w: (on_nodes[w.node or ""], -w.number))
            serving.remove(worker)
            on_nodes[worker.node or ""] -= 1
            self._drain(now, worker, self._drain_seconds)

    def _drain(self, now: float, worker: Member, seconds: float) -> None:
        worker.phase, worker.since = Phase.DRAINING, now
        worker.deadline = now + seconds + self._timing.worker
        self._version += 1
        self._actions.append(Drain(worker.number, seconds))

    def _kill(self, worker: Member, why: str | None) -> None:
        self._remove(worker.number)
        self._actions.append(Kill(worker.number, why))

    def _remove(self, number: int) -> Member | None:
        worker = self._workers.pop(number, None)
        if worker is not None and worker.phase is Phase.SERVING:
            self._version += 1
        return worker
