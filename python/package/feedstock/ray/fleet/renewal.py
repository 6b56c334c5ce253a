"""A process's bond with a fleet: one thread that renews the lease, tells how long the loaders here waited, and keeps
the list of workers up to date.

Workers that are lost are noticed by the streams themselves, at once; the list only says where to go next.
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
    from ... import Loader

#: For calls that the controller answers in microseconds, if it is not on its way to another node.
PATIENCE_SECONDS = 30.0

#: For a process's first call, which a fleet's first waits for: its controller's process and what that imports.
FIRST_SECONDS = 600.0


class Renewal:
    """Runs while there is a loader, or the owner, to run for."""

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
        """The workers, for loaders of this process; made when first asked for."""
        with self._lock:
            if self._members is not None:
                return self._members
            told: Renewed = ray.get(self._controller.renew.remote(None, (), None), timeout=PATIENCE_SECONDS)
            credentials = self.joined.credentials
            self._members = self.joined.native.members(
                workers=list(told.addresses or ()),
                token=credentials.token,
                ca=credentials.ca,
                client=credentials.client,
                server_name=SERVER_NAME if credentials.ca is not None else None,
                local=self.joined.local,
            )
            self._version = told.version
            return self._members

    def watch(self, loader: Loader) -> None:
        """Renews and tells while ``loader`` is alive."""
        with self._lock:
            self._loaders[loader] = WaitedShare()
            self._run()

    def hold(self) -> None:
        """Renews as the owner, until ``release``."""
        with self._lock:
            self._owner = True
            self._run()

    def release(self) -> None:
        """Renews no longer, whatever there is to renew for."""
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
            told = self._told(loaders)
            rank = self._rank if loaders else None
            del loaders  # the last reference to a loader must not be this one
            try:
                self._renew(rank, told)
            except ray.exceptions.ActorDiedError:
                with self._lock:
                    self._thread = None  # the fleet has ended; loaders go by their own rules for no worker
                return
            except Exception:  # the controller is on its way to another node, or Ray is about to end
                pass
            self._wake.wait(self.joined.renew_seconds)

    def _told(self, loaders: list[tuple[Any, WaitedShare]]) -> list[float]:
        told = []
        for loader, waited in loaders:
            with contextlib.suppress(Exception):  # one that has failed tells nothing
                share = waited.look(time.monotonic(), loader.stats())
                if share is not None:
                    told.append(share)
        return told

    def _renew(self, rank: str | None, told: list[float]) -> None:
        reference = self._controller.renew.remote(rank, told, self._version)
        renewed: Renewed = ray.get(reference, timeout=PATIENCE_SECONDS)
        with self._lock:
            if self._members is not None and renewed.addresses is not None:
                self._members.set(renewed.addresses)
                self._version = renewed.version


_renewals: dict[tuple[int, str], Renewal] = {}
_renewals_lock = threading.Lock()


def renewal(controller: Any) -> Renewal:
    """This process's bond with the fleet of ``controller``: one for all loaders."""
    joined: Joined = ray.get(controller.join.remote(), timeout=FIRST_SECONDS)
    key = os.getpid(), joined.id  # after a fork there is no thread
    with _renewals_lock:
        if key not in _renewals:
            _renewals[key] = Renewal(controller, joined)
        return _renewals[key]
