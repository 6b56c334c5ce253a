"""The arguments and the result of ``Pipeline.simulate``."""

from __future__ import annotations

from typing import Any, TypedDict

from feedstock._check import real, whole, whole_or_none


class Busy(TypedDict):
    """Shares of the time in which something is busy, 0 to 1."""

    threads: float
    connections: float
    #: Of the time of a request, the part until the first byte.
    first_byte: float
    #: The store's limit on requests per second.
    request_rate: float
    network: float
    #: The time in which nothing can be fetched, because the memory budget is full.
    budget: float


class Forecast(TypedDict):
    """What a job does with certain settings."""

    #: Of all ranks together.
    samples_per_s: float
    #: The share of the time that the trainer waits for batches.
    waiting_share: float
    first_batch_s: float
    epoch_s: float
    #: Of all ranks in an epoch, without hedges and retries.
    requests: int
    bytes: int
    #: Of blocks in memory, for each rank.
    resident_peak_bytes: int
    #: The same and the slots.
    memory_bytes: int
    dollars: float
    #: ``trainer``, ``cpu``, ``requests``, ``bandwidth``, ``latency``, ``budget`` or ``prefetch``.
    bottleneck: str
    busy: Busy


class Alternative(TypedDict):
    """A changed setting, and what it gives."""

    #: ``threads × 2``, ``shuffle_bytes ÷ 2`` …
    change: str
    #: None if a batch exceeds the budget.
    forecast: Forecast | None


class Simulation(TypedDict):
    """The result of a dry run."""

    epoch: int
    world_size: int
    samples: int
    steps: int
    simulated_ranks: int
    simulated_steps: int
    forecast: Forecast
    alternatives: list[Alternative]


def simulation_arguments(
    *,
    world_size: Any,
    epoch: Any,
    threads: Any,
    store: str | None,
    network_gbit: Any,
    concurrency: Any,
    workers: Any,
    worker_threads: Any,
    **numbers: Any,
) -> dict[str, int | float | str | None]:
    """Returns the arguments as the native module takes them, checked. ``numbers`` are times and prices."""
    infinity = float("inf")

    def not_negative(name: str, value: Any) -> float:
        return real(name, value, "a number >= 0", lambda number: 0 <= number < infinity)

    def positive(name: str, value: Any) -> float:
        return real(name, value, "a number > 0", lambda number: 0 < number < infinity)

    return {
        "world_size": whole("world_size", world_size, 1),
        "epoch": whole("epoch", epoch),
        "threads": whole_or_none("threads", threads, 1),
        "store": store,
        "network_gbit": None if network_gbit is None else positive("network_gbit", network_gbit),
        "concurrency": whole("concurrency", concurrency, 1),
        "workers": whole_or_none("workers", workers, 1),
        "worker_threads": whole("worker_threads", worker_threads, 1),
        **{name: not_negative(name, value) for name, value in numbers.items()},
    }
