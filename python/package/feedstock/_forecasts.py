"""What a pipeline will do, computed without reading its data."""

from __future__ import annotations

import html
import json
from typing import Any, cast

from feedstock._check import whole
from feedstock._description import Description
from feedstock._rows.function import RowFunction
from feedstock._simulation import Simulation, simulation_arguments
from feedstock._steps import R, Steps
from feedstock.errors import FeedstockError


class Forecasts(Steps[R]):
    """What can be computed about a pipeline before it runs."""

    def describe(self, world_size: int = 1) -> Description:
        """Describes the pipeline: its data, columns, order, batches, memory, and what an epoch reads.

        It prints as a table. Of the data, only the column of lengths is read, if there is one.

        Args:
            world_size: Ranks; default 1. The figures of batches and memory are those of rank 0.

        Returns:
            An object whose fields have the same: ``layout``, ``filter``, ``maps`` with ``dtype`` and ``shape``,
            ``order``, ``steps``, ``threads``, ``memory``, ``reads`` and others.

        Raises:
            ConfigError: The pipeline is not valid: what ``loader`` raises, too.

        Example:
            >>> pipeline = fs.Dataset(images).map("image", fs.decode_image(), fs.resize((32, 32))).batch(4)
            >>> described = pipeline.describe(world_size=2)
            >>> described.maps[0].dtype, described.maps[0].shape, described.global_batch_size
            ('uint8', (32, 32, 3), 8)
        """
        report = json.loads(self._native.describe(0, whole("world_size", world_size, 1)))
        return Description.of(report, tuple(map(function_text, self._functions)))

    def _repr_html_(self) -> str:
        try:
            return self.describe()._repr_html_()
        except FeedstockError as error:
            return f"<pre>{html.escape(repr(self))}\n{html.escape(str(error))}</pre>"

    def shuffle_quality(
        self, world_size: int = 1, *, labels: str | None = None, epoch: int = 0
    ) -> dict[str, Any]:
        """Measures how well the order shuffles, compared with a full shuffle, and what an epoch reads.

        Up to 64 steps of the real order are sampled, so this takes seconds for any number of samples. Only the labels
        of sampled samples are read.

        Args:
            world_size: Ranks; default 1.
            labels: A column of texts or integers. Default: ``label``, ``class``, ``labels`` or a column with class
                names, if there is one; without one, nothing is stated about labels.
            epoch: The epoch; default 0.

        Returns:
            ``why_blocks`` (why the default permutes blocks of this data set, and what changes that; else None),
            ``order``, ``full_shuffle``, and ``half_window`` and ``twice_window`` (None without a window). Each has:

            - ``global_batch`` and ``rank_batch``: ``labels`` (different labels in a batch), ``entropy_bits``, and
              ``entropy_ratio`` to a full shuffle's batches of the same size. None without labels.
            - ``same_shard_pairs``: the share of the pairs of samples in a global batch that come from one shard.
            - ``displacement``: mean |position − rank in the catalog| ÷ samples; 1/3 for a full shuffle.
            - ``reads``: ``rank_requests``, ``rank_bytes``, ``requests``, ``bytes`` of an epoch without caches, and
              ``readers``, the mean number of ranks that read a block or a piece.
            - ``shuffle`` (in words), ``window``, ``window_bytes``, ``lanes``.

            Also ``label_column``, ``sampled_steps``, ``labelled_steps``, ``global_batch``, ``epoch``, ``world_size``.
            ``feedstock plan URI --summary --json`` prints the same.

        Raises:
            ConfigError: The column or a number is not valid, batches do not fit the data set, or a global batch has
                more than 262,144 samples.

        Example:
            >>> quality = fs.Dataset(images).shuffle(seed=7).batch(global_batch_size=4).shuffle_quality(world_size=2)
            >>> quality["sampled_steps"], quality["label_column"], quality["order"]["reads"]["readers"]
            (2, 'label', 2.0)
        """
        world_size = whole("world_size", world_size, 1)
        report = self._native.shuffle_quality(world_size, whole("epoch", epoch), labels)
        return dict(json.loads(report))

    def simulate(
        self,
        world_size: int = 1,
        *,
        threads: int | None = None,
        decode_ms: float = 3.0,
        step_ms: float = 0.0,
        store: str | None = None,
        network_gbit: float | None = None,
        concurrency: int = 128,
        workers: int | None = None,
        worker_threads: int = 16,
        price_per_1000_requests: float = 0.0004,
        price_per_gb: float = 0.0,
        epoch: int = 0,
    ) -> Simulation:
        """Forecasts rate, waiting, requests, bytes, memory and costs of a job, without reading its data.

        The order, the prefetching and the memory budget are those of a real run. The store, the CPU threads and the
        trainer are models under a virtual clock. Workers and devices of this pipeline do not matter.

        Args:
            world_size: Ranks; default 1.
            threads: CPU threads of each rank. Default: those of ``options(threads=…)``, else of this machine.
            decode_ms: Milliseconds that a thread takes for a sample; default 3, a photograph.
            step_ms: Milliseconds that the trainer takes for a step; default 0.
            store: How the store answers: ``s3`` (27 ms), ``express`` (5 ms), ``far`` (150 ms) or ``local``. Default:
                ``local`` for local data, else ``s3``.
            network_gbit: Gigabits per second of each rank's network; default no limit.
            concurrency: Requests of a rank or worker under way at once; default 128.
            workers: Workers that decode for all ranks. Default: none, the ranks decode.
            worker_threads: CPU threads of each worker; default 16.
            price_per_1000_requests: Dollars for 1,000 GET requests; default 0.0004.
            price_per_gb: Dollars for 10⁹ bytes read; default 0.
            epoch: The epoch; default 0.

        Returns:
            ``forecast`` with ``samples_per_s`` (of all ranks), ``waiting_share``, ``first_batch_s``, ``requests``,
            ``bytes``, ``memory_bytes``, ``dollars`` and ``bottleneck`` among others; ``alternatives``, each a
            ``change`` of one setting and its ``forecast``; ``steps``, ``samples``, ``simulated_steps``,
            ``simulated_ranks``, ``epoch``, ``world_size``. ``feedstock simulate URI --json`` prints the same.

        Raises:
            ConfigError: A number or the store is not valid, or batches do not fit the data set or the budget.

        Example:
            >>> pipeline = fs.Dataset(images).shuffle(seed=7).batch(global_batch_size=4)
            >>> pipeline.simulate(store="far")["forecast"]["first_batch_s"] > 0.05
            True
        """
        given = simulation_arguments(
            world_size=world_size,
            epoch=epoch,
            threads=threads,
            store=store,
            network_gbit=network_gbit,
            concurrency=concurrency,
            workers=workers,
            worker_threads=worker_threads,
            decode_ms=decode_ms,
            step_ms=step_ms,
            price_per_1000_requests=price_per_1000_requests,
            price_per_gb=price_per_gb,
        )
        return cast("Simulation", json.loads(self._native.simulate(given)))


def function_text(function: Any) -> str:
    """Returns a function of a pipeline as its step: ``map_rows(…)``, ``map_python(…)``."""
    return str(function) if isinstance(function, RowFunction) else f"map_python({function[0]!r})"
