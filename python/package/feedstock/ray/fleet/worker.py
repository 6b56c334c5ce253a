"""A worker of a fleet as a Ray actor: it runs the native worker, sends beats to the controller, and ends when it is not
needed.

Native threads serve lanes. The actor's threads are few and mostly wait.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from dataclasses import dataclass

import ray
import ray.util

from ... import ConfigError
from .spec import Identity, Spec, controller_name

logger: logging.Logger = logging.getLogger("feedstock.ray.fleet")

#: Threads of the actor: one each for ``ended`` and ``drain``, and two for the calls of a controller that was restarted.
#: Twice that number leaves room for ``opened``.
CONCURRENCY = 8

#: ``ended`` is called again after this time, so that calls of lost controllers do not accumulate.
ENDED_SECONDS = 30.0


@dataclass(frozen=True)
class Opened:
    """The address of a worker."""

    address: str
    node: str
    pid: int


@dataclass(frozen=True)
class Refused:
    """The reason that no worker can start with these options."""

    why: str


class FleetWorker:
    """See the module."""

    def __init__(self, spec: Spec, identity: Identity, number: int) -> None:
        self._spec, self._number = spec, number
        self._over = threading.Event()
        self._why = ""
        self._refused: Refused | None = None
        try:
            self._open(identity)
        except (ConfigError, ImportError, AttributeError, TypeError) as error:
            # Not raised: Ray aborts an actor whose constructor fails, and reports the reason as text only.
            self._refused = Refused(f"{type(error).__name__}: {error}")

    def _open(self, identity: Identity) -> None:
        spec = self._spec
        self._node = ray.get_runtime_context().get_node_id()
        # An error if the job has ended while this waited for a node.
        self._controller = ray.get_actor(controller_name(spec.name), spec.namespace)
        host = ray.util.get_node_ip_address()
        self._native = spec.native.worker(
            listen=f"[{host}]:0" if ":" in host else f"{host}:0",
            advertise=None,
            allow=list(spec.allow),
            threads=spec.threads or max(1, math.ceil(spec.cpus_per_worker)),
            memory_bytes=spec.memory_bytes,
            decoder_memory=spec.decoder_memory,
            token=identity.credentials.token,
            tls=identity.server,
            client_ca=identity.credentials.ca,
            insecure=not spec.tls,
            storage=dict(spec.storage),
            catalogs_from=list(spec.catalogs_from),
            allow_code=spec.allow_code,
        )
        threading.Thread(target=self._beat, name="feedstock-fleet", daemon=True).start()

    def __repr__(self) -> str:
        return f"FleetWorker({self._spec.name} {self._number})"

    def opened(self) -> Opened | Refused:
        return self._refused or Opened(self._native.address, self._node, os.getpid())

    def ended(self) -> str | None:
        """Waits until the worker ends; returns the reason, or None after ``ENDED_SECONDS``: call it again then."""
        return self._why if self._over.wait(ENDED_SECONDS) else None

    def drain(self, seconds: float) -> bool:
        """Asks ranks to move their streams to other workers; returns True if all have moved within ``seconds``."""
        return self._native.drain(seconds)

    def _beat(self) -> None:
        timing, heard = self._spec.timing, time.monotonic()
        while True:
            try:
                belongs = self._controller.beat.remote(self._number, self._native.status())
                if not ray.get(belongs, timeout=timing.worker):
                    return self._leave("the controller does not know it")
                heard = time.monotonic()
            except ray.exceptions.ActorDiedError:
                return self._leave("the controller has ended, and so has its job")
            except Exception as error:  # the controller restarts, or is cut off
                silent = time.monotonic() - heard
                if silent > self._spec.lease_seconds:
                    return self._leave(f"no controller for {silent:.0f} s: {type(error).__name__}")
            time.sleep(timing.beat)

    def _leave(self, why: str) -> None:
        logger.info("worker %d of fleet %s leaves: %s", self._number, self._spec.name, why)
        with contextlib.suppress(Exception):
            self._native.drain(self._spec.drain_seconds)
        with contextlib.suppress(Exception):
            self._native.stop()
        self._why = why
        self._over.set()
        time.sleep(0.2)  # for the reply to a controller
        with contextlib.suppress(Exception):
            name = self._spec.worker_name(self._number)
            ray.kill(ray.get_actor(name, self._spec.workers_namespace), no_restart=True)
        time.sleep(5.0)
        os._exit(0)  # Ray did not end this process
