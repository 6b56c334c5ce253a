"""Handles of a fleet for all processes except its owner. A handle is pickled as the name of the fleet's controller."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import ray

from ... import ConfigError, Pipeline, RetryableError
from ..._options import LoaderOptions, takes_loader_options
from ..iterator import _Recipe
from .renewal import PATIENCE_SECONDS, Renewal, renewal
from .spec import SERVER_NAME, Credentials, controller_name

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ... import Loader, _feedstock
    from ..._workers import Watched

#: The name of a fleet that was made without one.
DEFAULT_NAME = "default"


class FleetHandle:
    """A fleet's workers, and loaders of its pipeline. Made by ``Fleet.handle()`` and ``find()``.

    It is a ``feedstock.WorkerSource``: ``pipeline.loader(workers=handle)``. A handle of ``find()`` has no pipeline, so
    it has no ``loader``. Picklable with and without Ray, because it holds names only.
    """

    def __init__(self, name: str, namespace: str, recipe: _Recipe | None = None) -> None:
        self._name, self._namespace, self._recipe = name, namespace, recipe
        self._controller: Any = None
        self._renewal: Renewal | None = None

    @property
    def name(self) -> str:
        """The fleet's name in its Ray namespace."""
        return self._name

    @takes_loader_options()
    def loader(self, rank: int = 0, world_size: int = 1, **options: Unpack[LoaderOptions]) -> Loader:
        """Makes the loader of one rank, whose rows the fleet prepares. Batches are those of ``Pipeline.loader``.

        While the loader is alive, it renews the fleet's lease and reports how long it waits.

        Args:
            rank: This process's rank in the data-parallel group; default 0.
            world_size: Ranks in that group; default 1.
            **options: See ``LoaderOptions``. ``workers`` must be left out.

        Raises:
            ConfigError: The handle has no pipeline, or an option is not valid.
        """
        if self._recipe is None:
            raise ConfigError(
                f"fleet {self._name!r} was found by its name and has no pipeline; use "
                "pipeline.loader(…, workers='ray')"
            )
        if options["workers"] is not None:
            raise ConfigError("workers= is the fleet itself; leave it out, or use pipeline.loader(…)")
        with_workers: LoaderOptions = {**options, "workers": self}
        return self._recipe.pipeline().loader(rank, world_size, **with_workers)

    def members(self) -> _feedstock.Members:
        """Returns the list of workers: one for all loaders of a process, kept up to date while a loader is watched."""
        return cast("_feedstock.Members", self._bond().members())

    def watch(self, loader: Watched) -> None:
        """Renews the lease and reports how long ``loader`` waits, while it is alive."""
        self._bond().watch(loader)

    def addresses(self) -> list[str]:
        """Returns ``host:port`` of every worker that serves now."""
        found: list[str] = self.status()["addresses"]
        return found

    @property
    def address(self) -> str:
        """The addresses in one string, for ``workers=`` outside of Ray."""
        return ",".join(self.addresses())

    @property
    def token(self) -> str:
        """The workers' token, for trainers outside of Ray. Trainers in Ray get it automatically."""
        return self.credentials.token

    @property
    def credentials(self) -> Credentials:
        """Token, authority, certificate and key (PEM), for trainers outside of Ray. See ``server_name``."""
        return self._bond().joined.credentials

    @property
    def server_name(self) -> str:
        """The name in all workers' certificates, independent of their addresses."""
        return SERVER_NAME

    def status(self) -> dict[str, Any]:
        """Returns the fleet's status.

        Returns:
            Among others ``size``; ``workers``, each with ``phase``, ``node``, ``pid``, ``address``, ``streams``,
            ``samples`` and ``shared_samples``, those that one job took from another; ``ranks``; ``waited_share``, the
            share of time that ranks waited; ``samples_per_second``; and ``failure``, the last one.
        """
        found: dict[str, Any] = ray.get(self._actor().status.remote(), timeout=PATIENCE_SECONDS)
        return found

    def wait(self, workers: int = 1, timeout: float = 600.0) -> None:
        """Waits until workers serve. Loaders need not wait: they begin with the workers that are there.

        Args:
            workers: The number of workers; default 1.
            timeout: The longest wait in seconds; default 600.

        Raises:
            ConfigError: Workers end because of an option, so waiting would not help.
            RetryableError: The workers do not serve within ``timeout``.
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
                    f"{timeout:g} s; {asked} more were requested from Ray, see `ray status` for what it lacks{failure}"
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
    """Returns the handle of a fleet, in any process of the job.

    Args:
        name: The fleet's name; default: that of a fleet that was made without one.
        namespace: The Ray namespace of the job that made the fleet; default: this job's.

    Raises:
        ConfigError: There is no such fleet, or this process is not connected to Ray.
    """
    if not ray.is_initialized():
        raise ConfigError(
            "Ray, through which a fleet is found, is not initialized in this process; call ray.init(), or give "
            "workers='host:port,…'"
        )
    handle = FleetHandle(name, namespace or ray.get_runtime_context().namespace)
    handle._actor()
    return handle


def pipeline_recipe(pipeline: Pipeline) -> _Recipe:
    """Returns a pipeline that is pickled once and opened where it is used."""
    return _Recipe(pipeline)


def _controller(name: str, namespace: str) -> Any:
    try:
        return ray.get_actor(controller_name(name), namespace)
    except ValueError:
        raise ConfigError(
            f"there is no fleet {name!r} in this job (Ray's namespace {namespace!r}): start one with "
            "feedstock.ray.Fleet(pipeline, …) before the trainer, or it has ended"
        ) from None
