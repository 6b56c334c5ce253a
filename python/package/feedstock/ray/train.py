"""Ray Train's configuration of data: one :class:`DataIterator` for each rank.

Ray calls ``configure()`` in a separate actor on the controller's node each time it starts a group of workers: at first,
after a failure, and after a resize, with the world size of that group. Nothing is read or coordinated there: each rank
gets (pipeline, rank, world size) and opens the data set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

import ray.train

from .. import ConfigError, Dataset, Pipeline
from .._options import LoaderOptions, SharedOptions, chosen, documents_loader_options, takes_loader_options
from .iterator import DataIterator

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Keywords(SharedOptions, total=False):
    """Options of a loader, and the keywords of Ray's class."""

    execution_options: Any
    enable_shard_locality: bool


@documents_loader_options
class DataConfig(ray.train.DataConfig):  # type: ignore[misc]
    """Gives each Ray Train worker the loader of its rank.

        TorchTrainer(loop, datasets={"train": pipeline, "val": evaluation}, dataset_config=DataConfig(restart=["val"]))

    ``datasets`` may contain pipelines and Ray Data's data sets; Ray handles the latter. Pipelines are pickled as
    recipes: names, options, and the functions of ``map_python`` and ``map_rows`` by cloudpickle.

    Args:
        datasets_to_split: As in Ray: ``"all"`` (default), or the names of those that are split among the workers. Each
            worker gets all of the others (rank 0 of 1).
        restart: The names of evaluation sets: those that start an epoch at every iteration; default: none.
        **options: See ``LoaderOptions``. They apply to all loaders; the default of ``output`` is ``"torch"``, and that
            of ``device`` is ``"auto"``, as described at :class:`DataIterator`. Other keywords are those of
            ``ray.train.DataConfig``, for Ray Data's data sets.

    Raises:
        TypeError: A keyword is neither an option nor one of ``ray.train.DataConfig``.
        ConfigError: A data set has no batches, or ``restart`` names something other than a pipeline.
    """

    @takes_loader_options(
        output="torch", device="auto", without=("restart",), others=ray.train.DataConfig.__init__
    )
    def __init__(
        self,
        datasets_to_split: Literal["all"] | list[str] = "all",
        *,
        restart: Collection[str] = (),
        **options: Unpack[Keywords],
    ) -> None:
        self._options = chosen(options)
        super().__init__(datasets_to_split, **{k: v for k, v in options.items() if k not in self._options})
        if isinstance(restart, str):
            raise ConfigError(f"restart must be a list of names; got {restart!r}: restart=[{restart!r}]")
        self._restart = frozenset(restart)

    def configure(
        self,
        datasets: Mapping[str, Any],
        world_size: int,
        worker_handles: Any,
        worker_node_ids: Any,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Returns a dict for each rank, from names to :class:`DataIterator` (or Ray's iterators)."""
        ours = {name: data for name, data in datasets.items() if _is_ours(name, data)}
        theirs = {name: data for name, data in datasets.items() if name not in ours}
        for name in self._restart & theirs.keys():
            raise ConfigError(
                f"restart must name pipelines; got {name!r}, which is of type {type(theirs[name]).__name__}"
            )
        shards: list[dict[str, Any]] = [{} for _ in range(world_size)]
        if theirs:
            shards = super().configure(theirs, world_size, worker_handles, worker_node_ids, **kwargs)
        for name, pipeline in ours.items():
            split = self._datasets_to_split == "all" or name in self._datasets_to_split
            loader_options: LoaderOptions = {**self._options, "restart": name in self._restart}
            for rank, shard in enumerate(shards):
                shard[name] = DataIterator(
                    pipeline,
                    rank=rank if split else 0,
                    world_size=world_size if split else 1,
                    **loader_options,
                )
        return shards


def _is_ours(name: str, data: object) -> bool:
    if isinstance(data, Dataset):
        raise ConfigError(
            f"datasets[{name!r}] is a Dataset, which has no batches; give a pipeline: dataset.batch(…)"
        )
    return isinstance(data, Pipeline)
