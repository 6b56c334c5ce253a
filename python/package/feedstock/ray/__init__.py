"""Ray: loaders for Ray Train, and fleets of workers on a Ray cluster.

    import feedstock as fs
    from feedstock.ray import DataConfig

    trainer = ray.train.torch.TorchTrainer(
        train_loop,
        scaling_config=ray.train.ScalingConfig(num_workers=8),
        datasets={"train": pipeline},
        dataset_config=DataConfig(),
    )

In ``train_loop``, ``ray.train.get_dataset_shard("train")`` returns a :class:`DataIterator`.

:class:`Fleet` prepares batches on other machines of the cluster; ``find()`` returns the fleet of this job.

:class:`PreemptionNotice` reports to a training loop that the node of a rank leaves, so that it saves a checkpoint.

:func:`to_ray_data` and :func:`from_ray_data` exchange data with Ray Data.

``import feedstock.ray`` does not import Ray. All names except :class:`DataIterator` and :class:`PreemptionNotice`
import it when they are first used:
``pip install 'feedstock[ray]'``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .._preemption import PreemptionNotice
from .iterator import DataIterator

if TYPE_CHECKING:
    from .data import from_ray_data, to_ray_data
    from .fleet import WORKER_RESOURCE, Fleet, FleetHandle, Scaling, find
    from .train import DataConfig

__all__ = [
    "WORKER_RESOURCE",
    "DataConfig",
    "DataIterator",
    "Fleet",
    "FleetHandle",
    "PreemptionNotice",
    "Scaling",
    "find",
    "from_ray_data",
    "to_ray_data",
]

# Name → the part of Ray that it needs, and where it is.
_NEEDS_RAY = dict.fromkeys(("WORKER_RESOURCE", "Fleet", "FleetHandle", "Scaling", "find"), ("ray", ".fleet"))
_NEEDS_RAY["DataConfig"] = ("ray.train", ".train")
_NEEDS_RAY.update(dict.fromkeys(("from_ray_data", "to_ray_data"), ("ray.data", ".data")))


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_RAY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    needed, module = _NEEDS_RAY[name]
    try:
        importlib.import_module(needed)  # first, so that an import that our module lacks raises another error
    except ImportError as error:
        what = {"ray": "Ray", "ray.data": "Ray Data", "ray.train": "Ray Train"}[needed]
        raise ImportError(
            f"feedstock.ray.{name} needs {what}, which cannot be imported ({error}): pip install 'feedstock[ray]'"
        ) from error
    return getattr(importlib.import_module(module, __name__), name)


def __dir__() -> list[str]:
    return __all__
