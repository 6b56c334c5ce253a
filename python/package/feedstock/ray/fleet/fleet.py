"""The fleet as its owner sees it: made, resized by what ranks wait, and ended with the job."""

from __future__ import annotations

import atexit
import contextlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ... import ConfigError, Pipeline
from ..._check import folders, whole, whole_or_none
from .controller import CONTROLLER_CONCURRENCY, Controller, find_workers
from .handle import DEFAULT_NAME, FleetHandle, pipeline_recipe
from .placement import Placement
from .policy import Scaling
from .sources import allowed, check_code, settings, sources
from .spec import Identity, Local, Native, Spec, Timing, controller_name

#: Draining at the interpreter's end, when no loader reads any more.
EXIT_SECONDS = 5.0


class Fleet(FleetHandle):
    """Starts workers on a Ray cluster that prepare a pipeline's batches.

        with Fleet(pipeline, min_workers=2, max_workers=16, cpus_per_worker=8) as fleet:
            TorchTrainer(train, train_loop_config={"fleet": fleet}, …).fit()

    In ``train``, call ``config["fleet"].loader(rank, world_size)``, or give any loader ``workers=fleet`` or
    ``workers="ray"``.

    Workers are Ray actors. The fleet starts them, replaces lost ones (on other nodes if possible), and adjusts their
    number between the bounds to the time that ranks wait. Workers without room wait in Ray's queue, which makes the
    autoscaler add nodes. A surplus worker is drained and ended, so that its node becomes idle. The constructor returns
    before workers serve; ``wait()`` waits for them.

    A fleet ends with ``shutdown()``, with the ``with`` block, with the process that made it, and when neither that
    process nor a rank has renewed its lease for ``lease_seconds``.

    Args:
        pipeline: The pipeline that ranks will load.
        min_workers: The fewest workers; default 1.
        max_workers: The most workers; default: ``min_workers``, a fixed size.
        cpus_per_worker: CPUs that a worker reserves with Ray, and its threads; default 1.
        placement: ``"SPREAD"`` over nodes (default), so that a lost node costs little; or ``"PACK"`` onto few.
        label_selector: Labels of the nodes where workers may run, as in Ray: ``{"pool": "cpu"}``, ``{"pool": "!gpu"}``,
            ``{"zone": "in(a, b)"}``. Default: any node.
        placement_group: A placement group of Ray, in whose bundles the workers run, for example next to actors that
            train. ``placement`` does not apply. It bounds the fleet: a worker without a bundle waits. Default: none.
        resources: Further logical resources of Ray that a worker reserves. ``{WORKER_RESOURCE: 1}`` keeps the workers
            on nodes that have that resource. Default: none.
        memory_bytes: The memory of a worker, also reserved with Ray. Default: the worker's default, not reserved.
        decoder_memory: Bytes of working memory that each CPU thread of a worker may take for one sample; default 64
            MiB. A larger sample borrows the rest from ``memory_bytes``. The pipeline's own option decides which samples
            are too large.
        threads: CPU threads of a worker; default: ``cpus_per_worker``.
        scaling: When the number of workers changes; default: ``Scaling()``.
        local: Whether ranks' machines prepare rows, too: ``"never"``; ``"fallback"`` (default) while no worker serves;
            or ``"share"`` as one of the workers.
        name: The fleet's name for ``find(name)``; required if a job has several fleets.
        allow: URI prefixes that workers may read; default: those that the pipeline names.
        storage: Settings of the workers' stores; default: those of the pipeline's data sets. Credentials may be here,
            or in the workers' environment: ``runtime_env={"env_vars": …}``, instance roles.
        catalogs_from: Folders in which workers look for ready catalogs, as in ``Dataset``; default: those of the
            pipeline's data sets. A worker that finds none takes a rank's stored catalog, if it has up to 256 MiB.
        runtime_env: The workers' Ray runtime environment; default: the job's.
        tls: ``True`` (default) encrypts connections, and admits only this fleet's ranks and workers, with certificates
            that are made for it. ``False`` uses the token only, for networks that encrypt connections.
        allow_code: Whether workers run functions of ``map_rows(executor="worker")`` and make items of
            ``fs.from_torch``, in processes on their nodes with the actor's rights. Everyone with the fleet's token and
            certificates can run code there. Needs ``tls``. Default: ``False``, they refuse such pipelines.
        lease_seconds: Workers are drained and end after this time without a renewal; default 60.
        drain_seconds: How long an ending worker waits until its streams have moved; default 30.

    Raises:
        ConfigError: Options contradict each other, or there is already a fleet of that name.

    Example:
        >>> from feedstock.ray import Fleet
        >>> pipeline = fs.Dataset(images).map("image", fs.decode_image(), fs.resize((8, 8))).batch(4)
        >>> with Fleet(pipeline, min_workers=1) as fleet:
        ...     fleet.wait()
        ...     loader = pipeline.loader(workers=fleet)
        ...     sum(batch.num_rows for batch in loader)
        8
    """

    def __init__(
        self,
        pipeline: Pipeline,
        min_workers: int = 1,
        max_workers: int | None = None,
        *,
        cpus_per_worker: float = 1,
        placement: Placement = "SPREAD",
        label_selector: Mapping[str, str] | None = None,
        placement_group: PlacementGroup | None = None,
        resources: Mapping[str, float] | None = None,
        memory_bytes: int | None = None,
        decoder_memory: int | None = None,
        threads: int | None = None,
        scaling: Scaling | None = None,
        local: Local = "fallback",
        name: str = DEFAULT_NAME,
        allow: Sequence[str] | None = None,
        storage: Mapping[str, Any] | None = None,
        catalogs_from: str | Sequence[str] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        tls: bool = True,
        allow_code: bool = False,
        lease_seconds: float = 60.0,
        drain_seconds: float = 30.0,
        _native: Native | None = None,
        _timing: Timing | None = None,
    ) -> None:
        if isinstance(allow, str):
            raise ConfigError(f"allow must be a list of URI prefixes; got {allow!r}: allow=[{allow!r}]")
        check_code(pipeline, allow_code)
        least = whole("min_workers", min_workers, 0)
        if not ray.is_initialized():
            ray.init()
        spec = Spec(
            name=name,
            namespace=ray.get_runtime_context().namespace,
            id=uuid.uuid4().hex,
            min_workers=least,
            max_workers=least if max_workers is None else whole("max_workers", max_workers, 1),
            cpus_per_worker=float(cpus_per_worker),
            threads=whole_or_none("threads", threads, 1),
            memory_bytes=whole_or_none("memory_bytes", memory_bytes, 1),
            decoder_memory=whole_or_none("decoder_memory", decoder_memory),
            resources=dict(resources or {}),
            placement=placement,
            label_selector=dict(label_selector or {}),
            placement_group=placement_group,
            scaling=scaling or Scaling(),
            local=local,
            lease_seconds=lease_seconds,
            drain_seconds=drain_seconds,
            tls=tls,
            allow=allowed(pipeline) if allow is None else tuple(allow),
            storage=settings(pipeline) if storage is None else dict(storage),
            catalogs_from=sources(pipeline)
            if catalogs_from is None
            else tuple(folders("catalogs_from", catalogs_from)),
            runtime_env=runtime_env,
            native=_native or Native(),
            timing=_timing or Timing(),
            allow_code=bool(allow_code),
        )
        identity = Identity.fresh(spec.native, tls)
        super().__init__(name, spec.namespace, pipeline_recipe(pipeline))
        self._spec = spec
        self._ended = False
        self._controller = self._start(spec, identity)
        self._bond().hold()
        _live.append(self)

    def _start(self, spec: Spec, identity: Identity) -> Any:
        # On its owner's node, without which it would end anyway, and which cannot become idle while the job runs. A
        # soft affinity has no effect: Ray places an actor that reserves nothing on any node.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options: dict[str, Any] = {
            "name": controller_name(spec.name),
            "namespace": self._namespace,
            "num_cpus": 0,
            "max_restarts": -1,
            "max_concurrency": CONTROLLER_CONCURRENCY,
            "enable_task_events": False,  # renewals would fill the dashboard
            "scheduling_strategy": here,
        }
        try:
            return ray.remote(Controller).options(**options).remote(spec, identity)
        except ValueError as error:
            raise ConfigError(
                f"there is already a fleet {spec.name!r} in this job (Ray namespace {self._namespace!r}); shut it "
                "down, or give this one another name"
            ) from error

    def handle(self) -> FleetHandle:
        """Returns the handle for ranks. Pickling the fleet pickles its handle."""
        return FleetHandle(self._name, self._namespace, self._recipe)

    def shutdown(self, drain_seconds: float | None = None) -> None:
        """Drains and ends the workers, then the controller.

        Args:
            drain_seconds: The longest time for draining; default: that of the fleet.
        """
        if self._ended:
            return
        self._ended = True
        if self in _live:
            _live.remove(self)
        self._bond().release()
        if not ray.is_initialized():
            return  # Ray has ended the job, and so its actors
        patience = (
            self._spec.drain_seconds if drain_seconds is None else drain_seconds
        ) + self._spec.timing.worker
        try:
            ray.get(self._controller.shutdown.remote(drain_seconds), timeout=2 * patience)
        except ray.exceptions.RayError:  # the controller cannot do it
            self._kill()
        with contextlib.suppress(Exception):
            ray.kill(self._controller, no_restart=True)

    def _kill(self) -> None:
        for worker in find_workers(self._spec).values():
            ray.kill(worker, no_restart=True)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


#: Ray counts references to actors: without this list, a fleet would end when the program drops its object.
_live: list[Fleet] = []


@atexit.register  # runs before Ray's handler, which was registered first
def _end_all() -> None:
    for fleet in list(_live):
        with contextlib.suppress(Exception):
            fleet.shutdown(EXIT_SECONDS)
