"""Finishing kernels compared with the bandwidth of the device's memory, measured by a copy inside it."""

from __future__ import annotations

from typing import Any

import torch
from report import Report, device_events, seconds

import feedstock as fs

# Images per batch: 154 MB are read and 154 to 616 MB written, which the device's cache (50 MB on an H100) cannot
# hold.
ROWS = 1024
STEPS = 5


def measure(report: Report, data: fs.Dataset, options: Any) -> None:
    memory = memory_rate()
    report.add("device memory: a copy of 1 GiB, reads and writes", "GB/s", memory)
    pipeline = data.map("image", fs.decode_image(), fs.random_resized_crop(224)).shuffle(seed=1).batch(ROWS)
    pixels = ROWS * 224 * 224 * 3
    for dtype, size in (("float32", 4), ("float16", 2), ("bfloat16", 2)):
        for layout in ("planes", "channels_last"):
            for mixing in (None, fs.mixup_cutmix(mixup_alpha=1.0, cutmix_alpha=0)):
                finish = {"image": fs.finish_pictures(dtype, layout=layout, flip=0.5, mix=mixing)}
                rate = kernel_rate(pipeline, finish, pixels * (1 + size), "pictures_")
                name = f"kernel: {dtype} {layout}{', mixup (input read twice)' if mixing else ''}"
                report.add(name, "GB/s", rate, memory, "≥ 80 %")


def memory_rate() -> float:
    block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(block)
    return 2 * block.numel() / seconds(lambda: other.copy_(block), 20) / 1e9


def kernel_rate(pipeline: fs.Pipeline, finish: dict[str, fs.Finish], moved_bytes: int, name: str) -> float:
    def work() -> None:  # the loader compiles before its first batch
        with pipeline.loader(device="cuda:0", finish=finish) as loader:
            for _, batch in zip(range(STEPS), loader, strict=False):
                batch["image"].torch()

    times = sorted(event["dur"] for event in device_events(work) if name in event["name"])
    if not times:
        raise SystemExit(f"the profiler shows no kernel {name}")
    return moved_bytes / times[len(times) // 2] / 1e3
