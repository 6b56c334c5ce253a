"""The actor that runs a fleet: it starts, watches, drains and ends workers, and sends their addresses to ranks.

    ranks, owner ──renew (2 s)──▶ Controller ──start, drain, kill──▶ FleetWorker
                 ◀──addresses────            ◀──────beat (1 s)──────

No batch and no lane passes through it, so trainers continue while it restarts. ``state.py`` decides; this module acts.
The controller belongs to the process that made the fleet and ends with that job. Workers are detached actors, which
survive its restarts: it finds them again by their names. Workers without a controller end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import ray.util
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from .metrics import Metrics
from .notices import Notices
from .placement import Free, choose, matches, without
from .policy import Policy
from .spec import Identity, Joined, Renewed, Spec, controller_name
from .state import Action, Drain, Exit, FleetState, Kill, Phase, Start
from .worker import CONCURRENCY, FleetWorker, Opened, Refused

logger: logging.Logger = logging.getLogger("feedstock.ray.fleet")

#: Threads of the actor. Renewals take microseconds; only ``shutdown`` and a fleet's first calls wait.
CONTROLLER_CONCURRENCY = 16

#: Ray's free resources are out of date for less than this after a start. Until then, the worker's are subtracted.
FREE_LAGS_SECONDS = 1.0


@dataclass
class _Actor:
    handle: Any
    sent: tuple[float, str] | None = None  # when, to which node with room


class Controller:
    """See the module. A lock guards the state; only its thread uses the actors."""

    def __init__(self, spec: Spec, identity: Identity) -> None:
        self._spec, self._identity = spec, identity
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._actors: dict[int, _Actor] = {}
        self._pending: dict[Any, Callable[[Any], None]] = {}  # reference → what to do with its value or error
        self._later: list[
            tuple[float, int, Any, Callable[[Any], None]]
        ] = []  # time, worker, method, what to do with the result
        self._incarnation = time.time_ns()  # versions of before a restart are not valid
        self._metrics = Metrics(spec.name)
        self._notices = Notices()
        found = self._find()
        policy = Policy(spec.min_workers, spec.max_workers, spec.scaling, size=len(found))
        self._state = FleetState(
            policy, spec.timing, spec.lease_seconds, spec.drain_seconds, time.monotonic()
        )
        for number, handle in found.items():
            self._state.adopted(time.monotonic(), number)
            self._watch(number, _Actor(handle))
        threading.Thread(target=self._run, name="feedstock-fleet", daemon=True).start()

    def __repr__(self) -> str:
        return f"FleetController({self._spec.name})"

    # Called by ranks, the owner and workers

    def join(self) -> Joined:
        """Returns what a rank needs before its first renewal."""
        spec = self._spec
        return Joined(spec.id, self._identity.credentials, spec.local, spec.timing.renew, spec.native)

    def renew(self, rank: str | None, waited: Sequence[float], version: str | None) -> Renewed:
        """Renews the lease and records the shares that a rank's loaders waited; returns the addresses of workers."""
        with self._lock:
            self._state.renew(time.monotonic(), rank, waited)
            current = f"{self._incarnation}-{self._state.version}"
            return Renewed(current, None if current == version else self._state.addresses)

    def beat(self, number: int, status: str) -> bool:
        """Records that a worker is alive; returns whether it still belongs to the fleet."""
        parsed = json.loads(status)
        with self._lock:
            return self._state.beat(time.monotonic(), number, parsed)

    def status(self) -> dict[str, Any]:
        """Returns the fleet's status as plain data."""
        with self._lock:
            state = self._state
            workers = [
                {
                    "number": worker.number,
                    "phase": worker.phase.value,
                    "node": worker.node,
                    "pid": worker.pid,
                    "address": worker.address,
                    "streams": worker.status.get("streams", 0),
                    "samples": worker.status.get("samples", 0),
                    "shared_samples": worker.status.get("shared_samples", 0),
                }
                for worker in state.workers
            ]
            waited = state.waited
            return {
                "name": self._spec.name,
                "size": state.size,
                "workers": workers,
                "addresses": state.addresses,
                "ranks": state.ranks,
                "waited_share": sum(waited) / len(waited) if waited else None,
                "samples_per_second": self._metrics.samples_per_second,
                "failure": state.failure,
                "refusal": state.refusal,
                "pid": os.getpid(),
            }

    def shutdown(self, drain_seconds: float | None = None) -> None:
        """Ends the fleet; returns when all workers have ended."""
        with self._lock:
            self._state.end(time.monotonic(), "it was shut down", drain_seconds)
        self._over.wait()

    # The thread

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                now = time.monotonic()
                leaving = self._notices.look(now)
                with self._lock:
                    self._state.leaving(now, leaving)
                    actions = self._state.tick(now)
                self._act(actions)
                self._ask_again()
                self._settle()
                self._publish()
            except Exception:
                logger.exception("fleet %s: the controller continues after an error", self._spec.name)
                time.sleep(self._spec.timing.tick)

    def _act(self, actions: list[Action]) -> None:
        starts = [action for action in actions if isinstance(action, Start)]
        if starts:
            self._start(starts)
        for action in actions:
            if isinstance(action, Drain):
                self._drain(action)
            elif isinstance(action, Kill):
                if action.why is not None:
                    logger.warning("fleet %s: worker %d ends: %s", self._spec.name, action.number, action.why)
                self._kill(action.number)
            elif isinstance(action, Exit):
                self._exit(action.why)

    def _start(self, starts: list[Start]) -> None:
        spec, now = self._spec, time.monotonic()
        with self._lock:
            ours = self._state.on_nodes()
        free = self._free(now)
        for start in starts:
            ray_places = start.anywhere or spec.placement_group is not None
            node = None if ray_places else choose(free, spec.need, ours, spec.placement, start.avoid)
            if node is not None:
                free = without(free, node, spec.need)
                ours[node] += 1
            with self._lock:
                self._state.placed(now, start.number, node)
            try:
                self._watch(
                    start.number,
                    _Actor(self._ask(start.number, node), None if node is None else (now, node)),
                )
            except Exception as error:  # Ray is not available, or does not know an option
                self._gone(start.number, _reason(error), refused=isinstance(error, (ValueError, TypeError)))

    def _ask(self, number: int, node: str | None) -> Any:
        spec = self._spec
        strategy: Any = "SPREAD" if spec.placement == "SPREAD" else "DEFAULT"
        if spec.placement_group is not None:
            strategy = PlacementGroupSchedulingStrategy(spec.placement_group)
        elif node is not None:
            # If another actor took the room meanwhile, the worker goes to any other node, not into a queue. Ray does
            # not look at labels then, so with a selector it waits, until it is requested again.
            elsewhere = not spec.label_selector
            strategy = NodeAffinitySchedulingStrategy(node, soft=elsewhere, _spill_on_unavailable=elsewhere)
        options: dict[str, Any] = {
            "name": spec.worker_name(number),
            "namespace": spec.workers_namespace,
            "lifetime": "detached",
            "num_cpus": spec.cpus_per_worker,
            "resources": dict(spec.resources),
            "max_restarts": 0,  # where the next one goes is decided here
            "max_concurrency": CONCURRENCY,
            "enable_task_events": False,
            "scheduling_strategy": strategy,
        }
        if spec.label_selector and node is None:
            options["label_selector"] = dict(spec.label_selector)
        if spec.memory_bytes is not None:
            options["memory"] = spec.memory_bytes
        if spec.runtime_env is not None:
            options["runtime_env"] = dict(spec.runtime_env)
        return ray.remote(FleetWorker).options(**options).remote(spec, self._identity, number)

    def _free(self, now: float) -> Free:
        """Returns the free resources of every node; empty if Ray does not report them, and then Ray places workers."""
        from ray._private.state import available_resources_per_node  # a developers' API, but the only one

        try:
            free: Free = available_resources_per_node()
        except Exception:
            logger.debug("Ray does not report the free resources of its nodes", exc_info=True)
            return {}
        if self._spec.label_selector:
            labels = {node["NodeID"]: node["Labels"] for node in ray.nodes()}
            fit = {node for node in free if matches(labels.get(node, {}), self._spec.label_selector)}
            free = {node: has for node, has in free.items() if node in fit}
        for actor in self._actors.values():
            if actor.sent is not None and now - actor.sent[0] < FREE_LAGS_SECONDS:
                free = without(free, actor.sent[1], self._spec.need)
        return free

    def _watch(self, number: int, actor: _Actor) -> None:
        """Requests a worker's address, and a reply when it ends. Its death is a reply to both."""
        self._actors[number] = actor

        def opened(value: Any) -> None:
            if isinstance(value, Opened):
                with self._lock:
                    self._state.started(time.monotonic(), number, value.node, value.address, value.pid)
            elif isinstance(value, Refused):
                self._gone(number, value.why, refused=True)
                ray.kill(actor.handle, no_restart=True)
            else:
                unanswered(value, actor.handle.opened, opened)

        def ended(value: Any) -> None:
            if isinstance(value, str):
                self._gone(number, value)
            else:
                unanswered(value, actor.handle.ended, ended)

        def unanswered(value: Any, method: Any, settle: Callable[[Any], None]) -> None:
            if value is not None and not isinstance(value, ray.exceptions.ActorUnavailableError):
                self._gone(number, _reason(value))
            elif number in self._actors:  # it has not ended, or cannot be reached: then its beats decide
                when = time.monotonic() + (0.0 if value is None else self._spec.timing.beat)
                self._later.append((when, number, method, settle))

        self._pending[actor.handle.opened.remote()] = opened
        self._pending[actor.handle.ended.remote()] = ended

    def _ask_again(self) -> None:
        now, later, self._later = time.monotonic(), self._later, []
        for when, number, method, settle in later:
            if now < when:
                self._later.append((when, number, method, settle))
            elif number in self._actors:
                self._pending[method.remote()] = settle

    def _gone(self, number: int, why: str, *, refused: bool = False) -> None:
        with self._lock:
            if any(worker.number == number for worker in self._state.workers):
                logger.warning("fleet %s: worker %d is gone: %s", self._spec.name, number, why)
            self._state.gone(time.monotonic(), number, why, refused=refused)
        self._actors.pop(number, None)

    def _drain(self, drain: Drain) -> None:
        def drained(_: Any) -> None:
            with self._lock:
                self._state.drained(drain.number)

        actor = self._actors.get(drain.number)
        if actor is None:
            drained(None)
        else:
            self._pending[actor.handle.drain.remote(drain.seconds)] = drained

    def _kill(self, number: int) -> None:
        actor = self._actors.pop(number, None)
        if actor is not None:
            ray.kill(actor.handle, no_restart=True)

    def _settle(self) -> None:
        """Waits for a tick or the first reply, and handles all replies."""
        if not self._pending:
            self._over.wait(self._spec.timing.tick)
            return
        waiting = list(self._pending)
        done, _ = ray.wait(waiting, num_returns=1, timeout=self._spec.timing.tick)
        if done and len(waiting) > 1:
            done, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        for reference in done:
            settle = self._pending.pop(reference)
            try:
                value: Any = ray.get(reference)
            except Exception as error:
                value = error
            settle(value)

    def _publish(self) -> None:
        with self._lock:
            state = self._state
            serving = [worker for worker in state.workers if worker.phase is Phase.SERVING]
            self._metrics.publish(
                time.monotonic(),
                size=state.size,
                workers=len(serving),
                streams=sum(worker.status.get("streams", 0) for worker in serving),
                samples=state.samples,
                waited=state.waited,
            )

    def _exit(self, why: str) -> None:
        logger.info("fleet %s ends: %s", self._spec.name, why)
        self._over.set()
        time.sleep(0.2)  # for the reply to a caller of shutdown()
        name = controller_name(self._spec.name)
        ray.kill(ray.get_actor(name, self._spec.namespace), no_restart=True)

    def _find(self) -> dict[int, Any]:
        """Returns the workers that were started before a restart, by number."""
        return {int(name.rpartition("-")[2]): handle for name, handle in find_workers(self._spec).items()}


def find_workers(spec: Spec) -> dict[str, Any]:
    """Returns the fleet's workers that Ray knows, by name, those in its queue included."""
    found = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == spec.workers_namespace:
            with contextlib.suppress(ValueError):  # it has just gone
                found[actor["name"]] = ray.get_actor(actor["name"], spec.workers_namespace)
    return found


def _reason(error: Exception) -> str:
    """Returns an error in one line: Ray's errors have many, with the reason in the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
