"""The table of results and its file; and measurements by the GPU's own clocks."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch


class Report:
    """Rows of (what, measured, ceiling, goal), printed as they come."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.machine = {
            "gpu": torch.cuda.get_device_name(0),
            "cpus": len(os.sched_getaffinity(0)),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "when": time.strftime("%Y-%m-%d %H:%M"),
        }
        print(", ".join(f"{name} {value}" for name, value in self.machine.items()))
        print(f"{'':44}{'measured':>18}{'ceiling':>18}{'share':>9}  goal")

    def add(
        self, what: str, unit: str, measured: float, ceiling: float | None = None, asked: str = ""
    ) -> None:
        row = {"what": what, "unit": unit, "measured": measured, "ceiling": ceiling, "asked": asked}
        self.rows.append(row)
        beside = "" if ceiling is None else f"{ceiling:,.1f} {unit}"
        share = "" if not ceiling else f"{measured / ceiling:.1%}"
        print(f"{what:44}{f'{measured:,.1f} {unit}':>18}{beside:>18}{share:>9}  {asked}", flush=True)

    def note(self, text: str) -> None:
        self.rows.append({"note": text})
        print(f"  {text}", flush=True)

    def keep(self, folder: Path) -> None:
        machine = f"{self.machine['gpu']}-{self.machine['cpus']}cpus".lower().replace(" ", "-")
        path = folder / f"results-{machine}.json"
        path.write_text(json.dumps({"machine": self.machine, "rows": self.rows}, indent=1) + "\n")
        print(f"written to {path}")


def device_events(work: Callable[[], None]) -> list[dict[str, Any]]:
    """Returns what ran on the GPU during `work`, by its own clocks: copies and kernels of every library in
    the process."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        work()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        trace = json.loads(Path(file.name).read_text())
    return [event for event in trace["traceEvents"] if event.get("cat") in ("kernel", "gpu_memcpy")]


def seconds(work: Callable[[], None], repeats: int) -> float:
    """Returns the GPU's time for one run of `work`: the median of `repeats`."""
    times = []
    for _ in range(repeats + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times[1:])[repeats // 2]


def gemms(milliseconds: float) -> Callable[[], None]:
    """Returns work that fills the whole GPU, as a model does, for about this time: products of matrices."""
    one, other = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    result = torch.empty_like(one)
    once = seconds(lambda: torch.mm(one, other, out=result), 20)
    repeats = max(1, round(milliseconds / 1e3 / once))

    def work() -> None:
        for _ in range(repeats):
            torch.mm(one, other, out=result)

    return work


def endless(loader: Any) -> Iterator[Any]:
    """Yields the batches of epoch after epoch."""
    while True:
        yield from loader


def seconds_a_batch(loader: Any, warm_up: int, batches: int) -> float:
    """Returns the seconds per batch of `loader` when no other process needs the CPUs."""
    taken = endless(loader)
    for _ in range(warm_up):
        next(taken)
    begun = time.perf_counter()
    for _ in range(batches):
        next(taken)
    return (time.perf_counter() - begun) / batches


def beside(events: list[dict[str, Any]], others: list[dict[str, Any]]) -> float:
    """Returns the share of the time of `events` in which one of `others` also ran."""
    if not events:
        raise SystemExit("the profiler shows none of the work to be compared")
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in others)
    merged: list[list[float]] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    shared = sum(
        max(0.0, min(event["ts"] + event["dur"], end) - max(event["ts"], begin))
        for event in events
        for begin, end in merged
    )
    return shared / sum(event["dur"] for event in events)
