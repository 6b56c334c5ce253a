"""The fleet as its owner sees it: made, resized by what ranks wait, and ended with the job."""

from __future__ import annotations

import atexit
import contextlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ... import ConfigError, Pipeline
from ..._check import whole, whole_or_none
from .controller import CONTROLLER_CONCURRENCY, Controller, find_workers
from .handle import DEFAULT_NAME, FleetHandle, pipeline_recipe
from .placement import Placement
from .policy import Scaling
from .sources import allowed, settings
from .spec import Identity, Local, Native, Spec, Timing, controller_name

#: For the end of the interpreter, when nobody reads any more.
EXIT_SECONDS = 5.0


class Fleet(FleetHandle):
    """Workers on a Ray cluster that make a pipeline's batches.

        with Fleet(pipeline, min_workers=2, max_workers=16, cpus_per_worker=8) as fleet:
            TorchTrainer(train, train_loop_config={"fleet": fleet}, …).fit()

    and in ``train``: ``config["fleet"].loader(rank, world_size)``, or ``pipeline.loader(…, workers="ray")``.

    Workers are Ray actors. The fleet starts them, replaces those that are lost, on other nodes if it can, and keeps
    their number between the bounds by how long ranks wait. What finds no room waits in Ray's queue, from which the
    autoscaler takes its orders; a worker too many is drained and ended, so that its node becomes idle. Returns before
    workers are there: ``wait()`` waits for them.

    It ends with ``shutdown()``, with the ``with`` block, with the process that made it, and when neither that process
    nor any rank was heard of for ``lease_seconds``.

    Args:
        pipeline: What ranks will read; it says where workers may read.
        min_workers, max_workers: The bounds; ``max_workers`` defaults to ``min_workers``: a fixed size.
        cpus_per_worker: CPUs that a worker reserves with Ray, and its threads.
        placement: ``"SPREAD"`` over nodes, so that a lost one costs little, or ``"PACK"`` onto few.
        resources: More of Ray's logical resources that a worker reserves; ``{WORKER_RESOURCE: 1}`` keeps the workers
            on nodes that have that resource.
        memory_bytes: A worker's bound on memory, also reserved with Ray; default the worker's own, nothing reserved.
        decoder_memory: Bytes of working memory that each CPU thread of a worker may take for one sample; default 64
            MiB. A larger sample borrows the rest from ``memory_bytes``. The pipeline's own option decides which samples
            are too large.
        threads: CPU threads of a worker, if not as many as ``cpus_per_worker``.
        scaling: When the size changes.
        local: Whether ranks' own machines decode: ``"never"``; as a ``"fallback"``, when no worker is there; or
            ``"share"``, always, beside the workers.
        name: Of the fleet; a job with several gives each its own. ``find(name)`` finds it.
        allow: URI prefixes that workers may read, if not those that the pipeline names.
        storage: Settings of the workers' stores, if not those of the pipeline's data set. Credentials may stand there,
            or in the workers' environment: ``runtime_env={"env_vars": …}``, instance roles.
        runtime_env: Ray's, for workers; default the job's.
        tls: Encrypts, and lets only this fleet's ranks and workers speak, by certificates made for it. ``False``, for
            networks that do so themselves, leaves the token.
        lease_seconds: Without a renewal for this long, workers are drained and end.
        drain_seconds: So long a worker that is to end waits for its streams to go elsewhere.

    Raises:
        ConfigError: Options that contradict each other, or a fleet of that name that is already there.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        min_workers: int = 1,
        max_workers: int | None = None,
        *,
        cpus_per_worker: float = 1,
        placement: Placement = "SPREAD",
        resources: Mapping[str, float] | None = None,
        memory_bytes: int | None = None,
        decoder_memory: int | None = None,
        threads: int | None = None,
        scaling: Scaling | None = None,
        local: Local = "fallback",
        name: str = DEFAULT_NAME,
        allow: Sequence[str] | None = None,
        storage: Mapping[str, Any] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        tls: bool = True,
        lease_seconds: float = 60.0,
        drain_seconds: float = 30.0,
        _native: Native | None = None,
        _timing: Timing | None = None,
    ) -> None:
        if isinstance(allow, str):
            raise ConfigError(f"allow is a list of URI prefixes, not one string: allow=[{allow!r}]")
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
            scaling=scaling or Scaling(),
            local=local,
            lease_seconds=lease_seconds,
            drain_seconds=drain_seconds,
            tls=tls,
            allow=allowed(pipeline) if allow is None else tuple(allow),
            storage=settings(pipeline) if storage is None else dict(storage),
            runtime_env=runtime_env,
            native=_native or Native(),
            timing=_timing or Timing(),
        )
        identity = Identity.fresh(spec.native, tls)
        super().__init__(name, spec.namespace, pipeline_recipe(pipeline))
        self._spec = spec
        self._ended = False
        self._controller = self._start(spec, identity)
        self._bond().hold()
        _live.append(self)

    def _start(self, spec: Spec, identity: Identity) -> Any:
        # On its owner's node, which it would not outlive elsewhere, and which cannot become idle while the job runs.
        # (A soft wish is not heard: an actor that reserves nothing goes to any node.)
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
                f"there is already a fleet {spec.name!r} in this job (Ray's namespace {self._namespace!r}): "
                "shut it down, or give this one another name"
            ) from error

    def handle(self) -> FleetHandle:
        """What ranks need of it; pickling the fleet sends this."""
        return FleetHandle(self._name, self._namespace, self._recipe)

    def shutdown(self, drain_seconds: float | None = None) -> None:
        """Drains and ends the workers (at most for ``drain_seconds``, default the fleet's), then the controller."""
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
        except ray.exceptions.RayError:  # it cannot: so do it here
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


#: Without this, a fleet that nobody holds a reference to would end: Ray counts them.
_live: list[Fleet] = []


@atexit.register  # after Ray's own, which was registered first and so comes last
def _end_all() -> None:
    for fleet in list(_live):
        with contextlib.suppress(Exception):
            fleet.shutdown(EXIT_SECONDS)
