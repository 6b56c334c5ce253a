"""Plots of results, as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import goals, table
from harness.stored import Figure, Results, figure

OURS, THEIRS, CEILING = "#0b6e4f", "#9aa5b1", "#c8553d"


def draw(results: Results, folder: Path) -> dict[tuple[str, str], Path]:
    """Draws one image per job and storage with rates, CPU time, first batch and memory; returns the files."""
    written = {}
    folder.mkdir(parents=True, exist_ok=True)
    for job, storage, _ in table.tables(results):
        written[job, storage] = folder / f"{job}-{storage}.svg"
        _draw(results, job, storage, written[job, storage])
    return written


def bars(results: Results, job: str, storage: str, name: str) -> list[tuple[str, Figure]]:
    """Returns contenders and their figures sorted by rate, slowest first, because bars are drawn from below."""
    found = []
    for peer in results.content["peers"]:
        rate = figure(results.values(job, storage, "steady", peer, "rate"))
        value = figure(results.values(job, storage, "steady", peer, name))
        if rate is not None and value is not None:
            found.append((rate.median, peer, value))
    return [(peer, value) for _, peer, value in sorted(found, key=lambda entry: entry[0])]


def _draw(results: Results, job: str, storage: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "feedstock"  # the same results make the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    from matplotlib import pyplot

    parts = [
        ("rate", "samples a second", 1.0),
        ("cpu_s_per_1000", "CPU-seconds per 1000 samples", 1.0),
        ("first_batch_s", "seconds to the first batch", 1.0),
        ("peak_bytes", "peak memory, MiB", 2.0**20),
    ]
    count = len(bars(results, job, storage, "rate"))
    drawing, axes = pyplot.subplots(
        1, len(parts), figsize=(14, 1.2 + 0.3 * count), sharey=True, layout="constrained"
    )
    for axis, (name, said, unit) in zip(axes, parts, strict=True):
        _bars(axis, results, bars(results, job, storage, name), unit)
        axis.set_title(said, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    cores = int(results.content["machine"].get("cores", 1))
    ceilings = table.ceilings_of(results, job).values()
    for value in ceilings:
        axes[0].axvline(cores * value, color=CEILING, linewidth=1, linestyle=":")
    drawing.suptitle(
        f"{job}, {storage}: {cores} cores{'; dotted: ceilings' if ceilings else ''}", fontsize=11
    )
    drawing.savefig(path, metadata={"Date": None})
    pyplot.close(drawing)


def _bars(axis: Any, results: Results, found: list[tuple[str, Figure]], unit: float) -> None:
    names = [goals.title(results, peer) for peer, _ in found]
    medians = [value.median / unit for _, value in found]
    below = [(value.median - value.low) / unit for _, value in found]
    above = [(value.high - value.median) / unit for _, value in found]
    colours = [OURS if peer in goals.ALSO_OURS else THEIRS for peer, _ in found]
    axis.barh(names, medians, xerr=[below, above], color=colours, error_kw={"linewidth": 0.8})
    axis.tick_params(labelsize=8)
