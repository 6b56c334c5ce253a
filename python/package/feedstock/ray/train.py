"""Ray Train's door for data: one :class:`DataIterator` for each rank.

Ray calls ``configure()`` in an actor of its own, on the controller's node, each time it starts a group of
workers: at first, after a failure, and after a resize, with the world size of that group. Nothing is read
there and nothing is coordinated: what each rank gets is (pipeline, rank, world size), and it opens the data
set itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import ray.train

from .. import ConfigError, Dataset, Pipeline, Workers
from .iterator import DataIterator, Output


class DataConfig(ray.train.DataConfig):  # type: ignore[misc]
    """Gives each Ray Train worker the loader of its rank.

        TorchTrainer(loop, datasets={"train": pipeline, "val": evaluation}, dataset_config=DataConfig(restart=["val"]))

    Args:
        datasets_to_split: ``"all"``, or the names of those to split among the workers; each worker gets the
            whole of the others (rank 0 of 1). As in Ray.
        output: what iterating yields: ``"torch"`` (default, as ``iter_torch_batches`` does), ``"numpy"`` or
            ``"batch"``.
        restart: the names of those whose every iteration is an epoch from its start: evaluation sets.
        workers: who makes the rows, as ``Pipeline.loader`` takes it: ``"ray"`` for the job's fleet (``Fleet``), or
            addresses; default the ranks' own machines.
        **ray_options: Ray's own, for Ray Data's data sets that stand beside the pipelines.

    ``datasets`` may mix pipelines with Ray Data's data sets; the latter are left to Ray. Pipelines are
    pickled on their way, as a recipe: names, options, and the functions of ``map_python`` by cloudpickle.

    Raises:
        ConfigError: a data set without batches, or a name in ``restart`` that names no pipeline.
    """

    def __init__(
        self,
        datasets_to_split: Literal["all"] | list[str] = "all",
        *,
        output: Output = "torch",
        restart: Collection[str] = (),
        workers: str | Workers | None = None,
        **ray_options: Any,
    ) -> None:
        super().__init__(datasets_to_split, **ray_options)
        if isinstance(restart, str):
            raise ConfigError(f"restart is a list of names, not one string: restart=[{restart!r}]")
        self._output: Output = output
        self._restart = frozenset(restart)
        self._workers = workers

    def configure(
        self,
        datasets: Mapping[str, Any],
        world_size: int,
        worker_handles: Any,
        worker_node_ids: Any,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """One dictionary a rank, from names to :class:`DataIterator` (or Ray's own iterators)."""
        ours = {name: data for name, data in datasets.items() if _is_ours(name, data)}
        theirs = {name: data for name, data in datasets.items() if name not in ours}
        for name in self._restart & theirs.keys():
            raise ConfigError(
                f"restart names {name!r}, which is no pipeline but {type(theirs[name]).__name__}"
            )
        shards: list[dict[str, Any]] = [{} for _ in range(world_size)]
        if theirs:
            shards = super().configure(theirs, world_size, worker_handles, worker_node_ids, **kwargs)
        for name, pipeline in ours.items():
            split = self._datasets_to_split == "all" or name in self._datasets_to_split
            for rank, shard in enumerate(shards):
                shard[name] = DataIterator(
                    pipeline,
                    rank=rank if split else 0,
                    world_size=world_size if split else 1,
                    output=self._output,
                    restart=name in self._restart,
                    workers=self._workers,
                )
        return shards


def _is_ours(name: str, data: object) -> bool:
    if isinstance(data, Dataset):
        raise ConfigError(f"datasets[{name!r}] is a Dataset, which has no batches: give dataset.batch(…)")
    return isinstance(data, Pipeline)
