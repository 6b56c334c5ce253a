"""Workers on other machines, as a loader names them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from feedstock import _feedstock


class Workers:
    """Who makes the rows: ``feedstock worker`` processes on this machine or others.

    Args:
        addresses: ``"host:port,host:port…"``, ``"dns:name:port"`` for all addresses of a name (a headless service of
            Kubernetes), which is looked up again and again, or a list of ``"host:port"``.
        token: What workers ask for; default the environment's ``FEEDSTOCK_TOKEN``.
        ca: PEM file of the authority that vouches for the workers; with it connections are encrypted.
        certificate: PEM file of this process's certificate, for workers that ask.
        key: PEM file of its private key.
        server_name: The name in the workers' certificates; default the host that is connected to.
        local: Whether this machine's CPUs serve as well: ``"never"``, ``"fallback"`` while no worker answers, or
            ``"share"`` as one of the workers.
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
            raise ValueError("certificate and key go together")
        self._addresses = addresses if isinstance(addresses, str) else list(addresses)
        self._token = token or os.environ.get("FEEDSTOCK_TOKEN") or None
        self._files = (ca, certificate, key)
        self._server_name, self._local = server_name, local
        self._made: _feedstock.Members | None = None

    def set(self, addresses: Sequence[str]) -> None:
        """These ``"host:port"`` are the workers now, for all loaders that were given this object: lanes move at the
        next step."""
        self._members().set(list(addresses))

    def status(self, address: str) -> str:
        """How the worker at ``address`` is, as JSON.

        Raises:
            RetryableError: Nobody answers.
            DeniedError: The token or a certificate is wrong.
        """
        return self._members().status(address)

    def _members(self) -> _feedstock.Members:
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


def members(workers: str | Workers | _feedstock.Members) -> _feedstock.Members:
    """The native list behind what a loader was given."""
    if isinstance(workers, str):
        workers = Workers(workers)
    return workers._members() if isinstance(workers, Workers) else workers
