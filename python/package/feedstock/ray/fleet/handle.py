"""A fleet as everyone but its owner sees it; it travels by the name of its controller."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ray

from ... import ConfigError, Pipeline, RetryableError
from ..iterator import _Recipe
from .renewal import PATIENCE_SECONDS, Renewal, renewal
from .spec import SERVER_NAME, Credentials, controller_name

if TYPE_CHECKING:
    from ... import Loader
    from .spec import NativeMembers

#: The name of a fleet that was given none.
DEFAULT_NAME = "default"


class FleetHandle:
    """Loaders of a fleet's pipeline, and who its workers are. Picklable, with Ray or without: it holds names.

    Made by ``Fleet.handle()`` or ``find()``; the latter knows no pipeline, so that ``loader`` is then the pipeline's:
    ``pipeline.loader(…, workers="ray")``.
    """

    def __init__(self, name: str, namespace: str, recipe: _Recipe | None = None) -> None:
        self._name, self._namespace, self._recipe = name, namespace, recipe
        self._controller: Any = None
        self._renewal: Renewal | None = None

    @property
    def name(self) -> str:
        """Of the fleet, in its namespace of Ray."""
        return self._name

    def loader(self, rank: int = 0, world_size: int = 1, **options: Any) -> Loader:
        """One rank's batches, made by the fleet: the same bytes as ``Pipeline.loader``, which takes the same
        ``options``.

        As long as the loader lives it renews the fleet's lease and reports how long it waited.
        """
        if self._recipe is None:
            raise ConfigError(
                f"fleet {self._name!r} was found by its name and knows no pipeline: "
                "use pipeline.loader(…, workers='ray')"
            )
        if "workers" in options:
            raise ConfigError("workers= is the fleet itself: leave it out, or use pipeline.loader(…)")
        loader = self._recipe.pipeline().loader(rank, world_size, **{"workers": self.members(), **options})
        self.watch(loader)
        return loader

    def members(self) -> NativeMembers:
        """The workers as loaders take them (``workers=``), kept up to date while a loader is watched; one object for
        all loaders of a process."""
        return self._bond().members()

    def watch(self, loader: Loader) -> None:
        """Reports how long ``loader`` waited, and renews the lease, while it is alive."""
        self._bond().watch(loader)

    def addresses(self) -> list[str]:
        """``host:port`` of every worker that serves now."""
        found: list[str] = self.status()["addresses"]
        return found

    @property
    def address(self) -> str:
        """The same in one string, as ``workers=`` takes it outside of Ray."""
        return ",".join(self.addresses())

    @property
    def token(self) -> str:
        """The secret that workers ask for. For trainers outside of Ray; those inside get it by themselves."""
        return self.credentials.token

    @property
    def credentials(self) -> Credentials:
        """Token, authority, certificate and key, in PEM, for trainers outside of Ray; certificates name
        ``server_name``."""
        return self._bond().joined.credentials

    @property
    def server_name(self) -> str:
        """The one name in the workers' certificates, whatever their addresses."""
        return SERVER_NAME

    def status(self) -> dict[str, Any]:
        """Size, workers (``phase``, ``node``, ``pid``, ``address``, ``streams``, ``samples``), ranks, the share of time
        that they waited, samples a second, the last failure."""
        found: dict[str, Any] = ray.get(self._actor().status.remote(), timeout=PATIENCE_SECONDS)
        return found

    def wait(self, workers: int = 1, timeout: float = 600.0) -> None:
        """Returns when so many workers serve. Loaders need not wait: they begin with those that are there.

        Raises:
            ConfigError: Workers end because of an option, so that waiting is of no use.
            RetryableError: Not within ``timeout`` seconds.
        """
        begin = time.monotonic()
        while len((status := self.status())["addresses"]) < workers:
            if status["refusal"] is not None:
                raise ConfigError(f"workers of fleet {self._name!r} cannot start: {status['refusal']}")
            if time.monotonic() - begin > timeout:
                asked = sum(worker["phase"] == "starting" for worker in status["workers"])
                failure = f"; the last failure: {status['failure']}" if status["failure"] else ""
                raise RetryableError(
                    f"{len(status['addresses'])} of {workers} workers of fleet {self._name!r} serve after "
                    f"{timeout:g} s; Ray was asked for {asked} more, see `ray status` for what it lacks{failure}"
                )
            time.sleep(0.2)

    def _actor(self) -> Any:
        if self._controller is None:
            self._controller = _controller(self._name, self._namespace)
        return self._controller

    def _bond(self) -> Renewal:
        if self._renewal is None:
            self._renewal = renewal(self._actor())
        return self._renewal

    def __reduce__(self) -> tuple[Any, ...]:
        return FleetHandle, (self._name, self._namespace, self._recipe)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"


def find(name: str = DEFAULT_NAME, namespace: str | None = None) -> FleetHandle:
    """The fleet of this job, from any of its processes; ``namespace`` is Ray's, for fleets of other jobs.

    Raises:
        ConfigError: There is none.
    """
    if not ray.is_initialized():
        raise ConfigError(
            "a fleet is found through Ray, which this process has not joined: call ray.init(), or give "
            "workers='host:port,…'"
        )
    handle = FleetHandle(name, namespace or ray.get_runtime_context().namespace)
    handle._actor()
    return handle


def pipeline_recipe(pipeline: Pipeline) -> _Recipe:
    """A pipeline on its way to ranks: pickled once, opened where it is used."""
    return _Recipe(pipeline)


def _controller(name: str, namespace: str) -> Any:
    try:
        return ray.get_actor(controller_name(name), namespace)
    except ValueError:
        raise ConfigError(
            f"there is no fleet {name!r} in this job (Ray's namespace {namespace!r}): start one with "
            "feedstock.ray.Fleet(pipeline, …) before the trainer, or it has ended"
        ) from None
