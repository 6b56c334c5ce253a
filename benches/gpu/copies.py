"""Host to device: feedstock's copies of batches compared with bare copies of the same number of page-locked bytes."""

from __future__ import annotations

from typing import Any

import torch
from report import Report, beside, device_events, gemms, seconds_a_batch

import feedstock as fs


def measure(report: Report, data: fs.Dataset, options: Any) -> None:
    pipeline = (
        data.map("image", fs.decode_image(), fs.random_resized_crop(224)).shuffle(seed=1).batch(options.batch)
    )
    batch_bytes = options.batch * 224 * 224 * 3

    def ours() -> None:
        with pipeline.loader(device="cuda:0") as loader:
            for _, batch in zip(range(20), loader, strict=False):
                batch["image"].torch()

    def bare() -> None:
        source = torch.empty(batch_bytes, dtype=torch.uint8).pin_memory()
        target = torch.empty(batch_bytes, dtype=torch.uint8, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                target.copy_(source, non_blocking=True)
        stream.synchronize()

    ours()  # compiles, locks pages and warms up
    rates = {name: rate(device_events(work), batch_bytes) for name, work in (("ours", ours), ("bare", bare))}
    report.add(
        f"copies of {batch_bytes / 1e6:.0f} MB, median", "GB/s", rates["ours"], rates["bare"], "≥ 95 %"
    )
    report_overlap(report, pipeline, batch_bytes)


def report_overlap(report: Report, pipeline: fs.Pipeline, batch_bytes: int) -> None:
    """Measures how far copies overlap with the model's kernels, and with the finishing kernels of the batch
    before."""
    # A little longer than decoding a batch takes; otherwise no batch would be ready to be copied ahead.
    compute = gemms(1.25e3 * decode_seconds(pipeline))
    finish = {"image": fs.finish_pictures("bfloat16", layout="channels_last", flip=0.5)}

    def work() -> None:
        with pipeline.loader(device="cuda:0", finish=finish) as loader:
            for _, batch in zip(range(20), loader, strict=False):
                batch["image"].torch()
                compute()

    events = device_events(work)
    copies = whole_copies(events, batch_bytes)[2:]  # the first copies overlap with nothing
    kernels = [event for event in events if event["cat"] == "kernel"]
    finishing = [event for event in kernels if "pictures_" in event["name"]]
    models = [event for event in kernels if "pictures_" not in event["name"]]
    report.add(
        "copies: time overlapping the model's kernels", "%", beside(copies, models) * 100, 100.0, "≈ 100 %"
    )
    report.add("finishing: time overlapping the model's kernels", "%", beside(finishing, models) * 100, 100.0)
    report.add(
        "copies while the model runs: median",
        "GB/s",
        sorted(event["args"]["bytes"] / event["dur"] / 1e3 for event in copies)[len(copies) // 2],
    )


def decode_seconds(pipeline: fs.Pipeline) -> float:
    """Returns the time of one batch with all CPUs."""
    with pipeline.loader() as loader:
        return seconds_a_batch(loader, warm_up=5, batches=20)


def whole_copies(events: list[dict[str, Any]], batch_bytes: int) -> list[dict[str, Any]]:
    """Returns the copies of whole batches from the host, sorted by time."""
    copies = [event for event in events if event["cat"] == "gpu_memcpy" and "HtoD" in event["name"]]
    whole = [event for event in copies if event["args"]["bytes"] == batch_bytes]
    if not whole:
        raise SystemExit(f"the profiler shows no copies of {batch_bytes} bytes among {len(copies)}")
    return sorted(whole, key=lambda event: event["ts"])


def rate(events: list[dict[str, Any]], batch_bytes: int) -> float:
    """Returns the median GB/s of the copies of whole batches."""
    rates = sorted(event["args"]["bytes"] / event["dur"] / 1e3 for event in whole_copies(events, batch_bytes))
    return rates[len(rates) // 2]
