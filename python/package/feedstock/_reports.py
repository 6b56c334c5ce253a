"""What a loader reports: its counters, the proof of delivery, and samples that were skipped or have warnings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict


class LoaderStats(TypedDict, total=False):
    """Counters of a run; empty before anything runs."""

    samples: int
    bad_samples: int
    steps: int
    fetched_blocks: int
    refetched_blocks: int
    fetched_bytes: int
    fetch_seconds: float
    ops_seconds: float
    hedges: int
    hedged_samples: int
    workers: int
    spare_workers: int
    resident_bytes: int
    peak_resident_bytes: int
    waited_seconds: float
    waited_map_python_seconds: float
    ready_batches: int
    held_batches: int
    slots: int


class Ledger(TypedDict):
    """The proof of exactly-once delivery for an epoch, of one rank."""

    epoch: int
    planned: int
    delivered: int
    padded: int
    substituted: int
    digest_planned: str
    digest_delivered: str
    exact: bool


class SkippedSample(TypedDict):
    """A sample that was left out, and why."""

    sample_id: int
    epoch: int
    reason: str


class SkipReport(TypedDict):
    """The number of samples that were left out, and the first 8,192 of them."""

    count: int
    samples: list[SkippedSample]


class WarnedSample(TypedDict):
    """A sample that was delivered with warnings of its decoder."""

    sample_id: int
    epoch: int
    kinds: list[str]


class WarningReport(TypedDict):
    """The number of samples by kind of warning, and the first 8,192 of these samples."""

    counts: dict[str, int]
    samples: list[WarnedSample]


def skip_report(count: int, skipped: Iterable[tuple[int, int, str]]) -> SkipReport:
    """Returns the native module's number and samples as dicts."""
    samples: list[SkippedSample] = [{"sample_id": s, "epoch": e, "reason": why} for s, e, why in skipped]
    return {"count": count, "samples": samples}


def warning_report(counts: dict[str, int], warned: Iterable[tuple[int, int, list[str]]]) -> WarningReport:
    """Returns the native module's counts and samples as dicts."""
    samples: list[WarnedSample] = [{"sample_id": s, "epoch": e, "kinds": kinds} for s, e, kinds in warned]
    return {"counts": counts, "samples": samples}
