"""A fleet's options, and the messages between its controller and ranks. Ray pickles all of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ... import ConfigError
from ..._check import one_of
from .placement import Placement
from .policy import Scaling

#: A logical resource for nodes that may run workers: ``Fleet(resources={WORKER_RESOURCE: 1})`` and, on the nodes,
#: ``ray start --resources '{"feedstock_worker": 8}'``.
WORKER_RESOURCE = "feedstock_worker"

#: The name in all certificates of a fleet, which are then valid for any address.
SERVER_NAME = "feedstock-fleet"

Local = Literal["never", "fallback", "share"]


def controller_name(fleet: str) -> str:
    """Returns the name of the controller's actor in the job's namespace."""
    return f"feedstock:{fleet}:controller"


class NativeWorker(Protocol):
    """``feedstock._feedstock.Worker``."""

    @property
    def address(self) -> str: ...
    def status(self) -> str: ...
    def drain(self, timeout: float) -> bool: ...
    def stop(self) -> None: ...


class NativeMembers(Protocol):
    """``feedstock._feedstock.Members``."""

    def set(self, addresses: list[str]) -> None: ...
    def addresses(self) -> list[str]: ...


class Native:
    """The native library, which tests replace."""

    def identity(self) -> dict[str, str]:
        from ... import _feedstock

        return _feedstock.fleet_identity([SERVER_NAME])

    def worker(self, **options: Any) -> NativeWorker:
        from ... import _feedstock

        return _feedstock.Worker(**options)

    def members(self, **options: Any) -> NativeMembers:
        from ... import _feedstock

        return _feedstock.Members(**options)


@dataclass(frozen=True)
class Timing:
    """Times in seconds.

    Args:
        tick: Between two decisions of the controller.
        beat: Between two messages of a worker to the controller; 100 workers make 100 small calls a second.
        worker: A worker that was silent for this time, ten beats, is replaced. Its ranks have moved long before.
        renew: Between two renewals of a rank, with which it reports how long it waited and gets the addresses; 1,000
            ranks make 500 small calls a second, of the 5,000 that an actor can handle.
        rank: A rank that was silent for this time, five renewals, no longer counts.
        avoid: After a worker failed on a node, new workers avoid that node for this time if another one has room.
        avoid_most: A node that is about to leave the cluster is avoided until then, at most for this time.
        adopt: A worker that is older than the controller must respond within this time, or is replaced.
        place: A worker that was sent to a node with room must run within this time, or is requested for any node.
        backoff: Workers that fail soon after they started are started again after this time, which doubles.
        backoff_most: The longest ``backoff``.
    """

    tick: float = 0.25
    beat: float = 1.0
    worker: float = 10.0
    renew: float = 2.0
    rank: float = 10.0
    avoid: float = 60.0
    avoid_most: float = 3600.0
    adopt: float = 15.0
    place: float = 30.0
    backoff: float = 1.0
    backoff_most: float = 30.0


@dataclass(frozen=True)
class Spec:
    """A fleet's options, checked; ``Fleet`` documents them. Its repr shows no secret."""

    name: str
    namespace: str  # of the job, and so of the controller
    id: str
    min_workers: int
    max_workers: int
    cpus_per_worker: float
    threads: int | None
    memory_bytes: int | None
    decoder_memory: int | None
    resources: Mapping[str, float]
    placement: Placement
    label_selector: Mapping[str, str]
    placement_group: Any  # of Ray, or None
    scaling: Scaling
    local: Local
    lease_seconds: float
    drain_seconds: float
    tls: bool
    allow: tuple[str, ...]
    storage: Mapping[str, Any] = field(repr=False)
    catalogs_from: tuple[str, ...]
    runtime_env: Mapping[str, Any] | None = field(repr=False)
    native: Native = field(repr=False)
    timing: Timing = field(repr=False)
    allow_code: bool = False

    def __post_init__(self) -> None:
        if not self.name or ":" in self.name:
            raise ConfigError(f"name must be a word without a colon; got {self.name!r}")
        if self.max_workers < self.min_workers:
            raise ConfigError(
                f"max_workers must be >= min_workers={self.min_workers}; got {self.max_workers}"
            )
        if self.cpus_per_worker < 0:
            raise ConfigError(f"cpus_per_worker must be >= 0; got {self.cpus_per_worker}")
        one_of("placement", self.placement, ("SPREAD", "PACK"))
        if self.placement_group is not None and self.label_selector:
            raise ConfigError(
                "label_selector has no effect on a placement_group, whose bundles are placed already; give it to "
                "ray.util.placement_group(bundle_label_selector=…)"
            )
        one_of("local", self.local, ("never", "fallback", "share"))
        if self.allow_code and not self.tls:
            raise ConfigError(
                "allow_code=True needs tls=True: every client of such a worker can run code on its node"
            )
        if self.lease_seconds < 4 * self.timing.renew:
            raise ConfigError(
                f"lease_seconds must be >= {4 * self.timing.renew:g}, four renewals, to survive a lost one; "
                f"got {self.lease_seconds}"
            )
        if self.drain_seconds < 0:
            raise ConfigError(f"drain_seconds must be >= 0; got {self.drain_seconds}")
        if not self.allow and not self.allow_code:  # code reads what it likes
            raise ConfigError(
                "allow must have at least one URI prefix, or the workers could not read anything"
            )

    @property
    def workers_namespace(self) -> str:
        """The namespace of the workers' names, by which a restarted controller finds them."""
        return f"feedstock-{self.id}"

    def worker_name(self, number: int) -> str:
        return f"feedstock:{self.name}:worker-{number}"

    @property
    def need(self) -> dict[str, float]:
        """The resources that a worker needs on a node, by Ray's names."""
        need = {"CPU": self.cpus_per_worker, **self.resources}
        if self.memory_bytes is not None:
            need["memory"] = float(self.memory_bytes)
        return need


@dataclass(frozen=True, repr=False)
class Credentials:
    """A trainer's token and certificate, and the workers' authority (PEM). Its repr shows no secret."""

    token: str
    ca: str | None
    certificate: str | None
    key: str | None

    @property
    def client(self) -> tuple[str, str] | None:
        """Certificate and key, if there are any."""
        return None if self.certificate is None or self.key is None else (self.certificate, self.key)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes ``token``, ``ca.pem``, ``client.pem`` and ``client.key`` into ``folder``, for this user only."""
        files = {
            "token": self.token,
            "ca.pem": self.ca,
            "client.pem": self.certificate,
            "client.key": self.key,
        }
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name, text in files.items():
            if text is not None:
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)  # other users might be able to read it
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(text)

    def __repr__(self) -> str:
        return "Credentials(***)"


@dataclass(frozen=True, repr=False)
class Identity:
    """All secrets of a fleet. Its repr shows none."""

    credentials: Credentials
    server: tuple[str, str] | None  # certificate, key

    @classmethod
    def fresh(cls, native: Native, tls: bool) -> Identity:
        made = native.identity()
        if not tls:
            return cls(Credentials(made["token"], None, None, None), None)
        client = Credentials(made["token"], made["ca"], made["client_cert"], made["client_key"])
        return cls(client, (made["server_cert"], made["server_key"]))

    def __repr__(self) -> str:
        return "Identity(***)"


@dataclass(frozen=True)
class Joined:
    """The controller's response to a rank's first call."""

    id: str
    credentials: Credentials
    local: Local
    renew_seconds: float
    native: Native = field(repr=False)


@dataclass(frozen=True)
class Renewed:
    """What a rank gets when it renews the lease: ``addresses`` is None if ``version`` is what it knows."""

    version: str
    addresses: list[str] | None
