"""JPEGs decoded by the GPU, by the CPU and by both, compared with nvJPEG alone; and the differences of their pixels."""

from __future__ import annotations

import itertools
import os
from typing import Any

import torch
from report import Report, endless, seconds
from torchvision import io

import feedstock as fs

BATCHES = 40


def measure(report: Report, data: fs.Dataset, options: Any) -> None:
    pipeline = (
        data.map("image", fs.decode_image(), fs.random_resized_crop(224)).shuffle(seed=1).batch(options.batch)
    )
    report_difference(report, pipeline)
    bare = nvjpeg_alone(data, options.batch)
    report.add("decoding: nvJPEG alone (torchvision), whole batches", "images/s", bare)
    for threads in sorted({2, 8, len(os.sched_getaffinity(0))}):
        limited = pipeline.options(threads=threads)
        cpu = rate(limited, options.batch, 0.0)
        report.add(f"decoding: {threads} CPU threads", "images/s", cpu)
        gpu = rate(limited, options.batch, 1.0)
        report.add(f"decoding: {threads} CPU threads, nvjpeg=1", "images/s", gpu, bare)
        # Both decode as much as they can.
        share = round(gpu / (cpu + gpu), 2)
        both = rate(limited, options.batch, share)
        report.add(f"decoding: {threads} CPU threads, nvjpeg={share}", "images/s", both, cpu + gpu)


def rate(pipeline: fs.Pipeline, rows: int, share: float) -> float:
    """Returns the images per second that reach the device, whichever device decodes them."""
    with pipeline.loader(device="cuda:0", nvjpeg=share, depth=3) as loader:
        batches = endless(loader)
        for _ in range(8):
            next(batches)["image"].torch()

        def take() -> None:
            for _ in range(BATCHES):
                next(batches)["image"].torch()

        return BATCHES * rows / seconds(take, 3)


def nvjpeg_alone(data: fs.Dataset, rows: int) -> float:
    """Measures whole images, without reading, cropping and resizing."""
    encoded: list[torch.Tensor] = []
    with data.batch(rows).loader() as loader:
        for batch in itertools.islice(loader, 4):
            encoded += [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in batch["image"]]
    groups = [encoded[at : at + rows] for at in range(0, len(encoded), rows)]

    def decode() -> None:
        for group in groups:
            io.decode_jpeg(group, io.ImageReadMode.RGB, device="cuda")

    return len(encoded) / seconds(decode, 5)


def report_difference(report: Report, pipeline: fs.Pipeline) -> None:
    with pipeline.loader() as plain, pipeline.loader(device="cuda:0", nvjpeg=1.0) as ours:
        total, most, elements = 0, 0, 0
        for cpu, gpu in itertools.islice(zip(plain, ours, strict=True), 8):
            apart = (cpu["image"].torch().cuda().int() - gpu["image"].torch().int()).abs()
            total, most, elements = (
                total + int(apart.sum()),
                max(most, int(apart.max())),
                elements + apart.numel(),
            )
    report.add("decoding: nvJPEG's pixels against the CPU's, mean", "levels", total / elements, asked="< 1")
    report.add("decoding: nvJPEG's pixels against the CPU's, maximum", "levels", most)
