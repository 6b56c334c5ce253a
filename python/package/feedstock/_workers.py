"""Workers on other machines: the forms that a loader's ``workers=`` takes."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from feedstock import _feedstock
from feedstock.errors import ConfigError

#: Entry points of packages that offer workers by name: functions without arguments that return a ``WorkerSource``.
_GROUP = "feedstock.workers"
#: Our own adapters, loaded when they are named. They need no metadata of an installed package.
_OWN = (importlib.metadata.EntryPoint("ray", "feedstock.ray:find", _GROUP),)


class Watched(Protocol):
    """The part of a ``Loader`` that sources of workers use."""

    def stats(self) -> Mapping[str, Any]:
        """See ``Loader.stats``."""


@runtime_checkable
class WorkerSource(Protocol):
    """Any object that a loader takes as ``workers=``: it knows the workers, and may watch the loaders that use them.

    ``fs.Workers`` is one, and so are ``feedstock.ray.Fleet`` and its handles. A package can register one under a name,
    as an entry point of the group ``feedstock.workers``; ``workers="name"`` then finds it.
    """

    def members(self) -> _feedstock.Members:
        """Returns the list of workers, such as that of ``fs.Workers(addresses).members()``.

        The loader keeps the list. Its ``set(addresses)`` changes the workers of all loaders that have it.
        """

    def watch(self, loader: Watched) -> None:
        """Called once with every loader that was made with this source, for example to report how long it waits."""


WorkersLike = str | WorkerSource | _feedstock.Members


class Workers:
    """The addresses of ``feedstock worker`` processes, with the token and certificates that they require.

    Picklable, with the token. Files of certificates are read where the first loader is made.

    Args:
        addresses: ``"host:port,host:port"``; ``"dns:name:port"`` for all addresses of a name (a headless service of
            Kubernetes), which is resolved again while loaders run; or a list of ``"host:port"``.
        token: The workers' token; default: the environment variable ``FEEDSTOCK_TOKEN``.
        ca: PEM file of the authority that signed the workers' certificates. With it, connections are encrypted.
        certificate: PEM file of this process's certificate, for workers that require one.
        key: PEM file of the certificate's private key.
        server_name: The name in the workers' certificates; default: the host of the address.
        local: Whether this machine's CPUs prepare rows, too: ``"never"`` (default), ``"fallback"`` while no worker
            answers, or ``"share"`` as one of the workers.

    Raises:
        ValueError: Only one of ``certificate`` and ``key`` is given.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        server_name: str | None = None,
        local: Literal["never", "fallback", "share"] = "never",
    ) -> None:
        if (certificate is None) != (key is None):
            raise ValueError("certificate and key must be given together")
        self._addresses = addresses if isinstance(addresses, str) else list(addresses)
        self._token = token or os.environ.get("FEEDSTOCK_TOKEN") or None
        self._files = (ca, certificate, key)
        self._server_name, self._local = server_name, local
        self._made: _feedstock.Members | None = None

    def set(self, addresses: Sequence[str]) -> None:
        """Replaces the workers of all loaders that were given this object; lanes move at the next step.

        Args:
            addresses: A list of ``"host:port"``.
        """
        self.members().set(list(addresses))

    def status(self, address: str) -> str:
        """Returns the status of the worker at ``address`` as JSON.

        Raises:
            RetryableError: The worker does not answer.
            DeniedError: The token or a certificate is wrong.
        """
        return self.members().status(address)

    def members(self) -> _feedstock.Members:
        """Returns the list of workers: one for all loaders that are given this object."""
        if self._made is None:
            ca, certificate, key = (path and Path(path).read_text(encoding="utf-8") for path in self._files)
            self._made = _feedstock.Members(
                self._addresses,
                token=self._token,
                ca=ca or None,
                client=(certificate, key) if certificate and key else None,
                server_name=self._server_name,
                local=self._local,
            )
        return self._made

    def watch(self, loader: Watched) -> None:
        """Does nothing: the caller decides which workers there are."""

    def __reduce__(self) -> tuple[Any, ...]:
        listed = not isinstance(self._addresses, str)
        addresses = self._made.addresses() if listed and self._made is not None else self._addresses
        return _again, (addresses, self._token, self._files, self._server_name, self._local)

    def __repr__(self) -> str:
        return f"Workers({self._addresses!r})"


def _again(addresses: Any, token: Any, files: Any, server_name: Any, local: Any) -> Workers:
    ca, certificate, key = files
    return Workers(
        addresses,
        token=token,
        ca=ca,
        certificate=certificate,
        key=key,
        server_name=server_name,
        local=local,
    )


class _Listed:
    """A native list as a source."""

    def __init__(self, members: _feedstock.Members) -> None:
        self._members = members

    def members(self) -> _feedstock.Members:
        return self._members

    def watch(self, loader: Watched) -> None:
        pass


def source_of(workers: WorkersLike) -> WorkerSource:
    """Returns the source that the option ``workers`` names.

    Raises:
        ConfigError: It is neither an address, a registered name nor a source.
    """
    if isinstance(workers, str):
        return Workers(workers) if ":" in workers or not workers.strip() else _registered(workers)
    if isinstance(workers, _feedstock.Members):
        return _Listed(workers)
    if isinstance(workers, WorkerSource):
        return workers
    raise ConfigError(
        "workers must be 'host:port', several with commas, 'dns:name:port', fs.Workers, or an object with "
        f"members() and watch(loader); got {workers!r}"
    )


def _registered(name: str) -> WorkerSource:
    entries = [*_OWN, *importlib.metadata.entry_points(group=_GROUP)]
    for entry in entries:
        if entry.name == name:
            found: WorkerSource = entry.load()()
            return found
    known = ", ".join(sorted({repr(entry.name) for entry in entries}))
    raise ConfigError(
        f"workers must be 'host:port', several with commas, 'dns:name:port', or a registered name ({known}); "
        f"got {name!r}"
    )
