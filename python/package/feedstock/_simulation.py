"""The result of ``Pipeline.simulate``."""

from __future__ import annotations

from typing import TypedDict


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
