"""A process's connection to a fleet: one thread renews the lease, reports how long the process's loaders waited, and
updates the list of workers.

Streams notice lost workers at once; they use the list only to choose the next worker.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
import weakref
from typing import TYPE_CHECKING, Any

import ray

from .spec import SERVER_NAME, Joined, NativeMembers, Renewed
from .waited import WaitedShare

if TYPE_CHECKING:
    from ..._workers import Watched

#: For calls that the controller answers in microseconds, unless it is restarting.
PATIENCE_SECONDS = 30.0

#: For a process's first call. That of a new fleet waits until the controller's process has started.
FIRST_SECONDS = 600.0


class Renewal:
    """Renews while this process has a watched loader or owns the fleet."""

    def __init__(self, controller: Any, joined: Joined) -> None:
        self.joined = joined
        self._controller = controller
        self._rank = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._loaders: weakref.WeakKeyDictionary[Any, WaitedShare] = weakref.WeakKeyDictionary()
        self._owner = False
        self._thread: threading.Thread | None = None
        self._members: NativeMembers | None = None
        self._version: str | None = None

    def members(self) -> NativeMembers:
        """Returns the list of workers for loaders of this process, made at the first call."""
        with self._lock:
            if self._members is not None:
                return self._members
            renewed: Renewed = ray.get(
                self._controller.renew.remote(None, (), None), timeout=PATIENCE_SECONDS
            )
            credentials = self.joined.credentials
            self._members = self.joined.native.members(
                workers=list(renewed.addresses or ()),
                token=credentials.token,
                ca=credentials.ca,
                client=credentials.client,
                server_name=SERVER_NAME if credentials.ca is not None else None,
                local=self.joined.local,
            )
            self._version = renewed.version
            return self._members

    def watch(self, loader: Watched) -> None:
        """Renews the lease and reports the waited share while ``loader`` is alive."""
        with self._lock:
            self._loaders[loader] = WaitedShare()
            self._run()

    def hold(self) -> None:
        """Renews the lease as the owner, until ``release``."""
        with self._lock:
            self._owner = True
            self._run()

    def release(self) -> None:
        """Stops renewing."""
        with self._lock:
            self._owner = False
            self._loaders.clear()
        self._wake.set()

    def _run(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._wake.clear()
            self._thread = threading.Thread(target=self._loop, name="feedstock-lease", daemon=True)
            self._thread.start()

    def _loop(self) -> None:
        while True:
            with self._lock:
                loaders = list(self._loaders.items())
                if not (loaders or self._owner) or not ray.is_initialized():
                    self._thread = None
                    return
            waited = self._waited(loaders)
            rank = self._rank if loaders else None
            del loaders  # the last reference to a loader must not be this one
            try:
                self._renew(rank, waited)
            except ray.exceptions.ActorDiedError:
                with self._lock:
                    self._thread = None  # the fleet has ended; loaders handle that no worker serves
                return
            except Exception:  # the controller restarts, or Ray is about to end
                pass
            self._wake.wait(self.joined.renew_seconds)

    def _waited(self, loaders: list[tuple[Any, WaitedShare]]) -> list[float]:
        shares = []
        for loader, waited in loaders:
            with contextlib.suppress(Exception):  # a loader that has failed reports nothing
                share = waited.look(time.monotonic(), loader.stats())
                if share is not None:
                    shares.append(share)
        return shares

    def _renew(self, rank: str | None, waited: list[float]) -> None:
        reference = self._controller.renew.remote(rank, waited, self._version)
        renewed: Renewed = ray.get(reference, timeout=PATIENCE_SECONDS)
        with self._lock:
            if self._members is not None and renewed.addresses is not None:
                self._members.set(renewed.addresses)
                self._version = renewed.version


_renewals: dict[tuple[int, str], Renewal] = {}
_renewals_lock = threading.Lock()


def renewal(controller: Any) -> Renewal:
    """Returns this process's connection to the fleet of ``controller``: one for all loaders."""
    joined: Joined = ray.get(controller.join.remote(), timeout=FIRST_SECONDS)
    key = os.getpid(), joined.id  # a forked process does not have the thread
    with _renewals_lock:
        if key not in _renewals:
            _renewals[key] = Renewal(controller, joined)
        return _renewals[key]
