"""How long the GPU waits for data while products of matrices fill it for 10 ms a batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from report import Report, endless, gemms, seconds_a_batch

import feedstock as fs

STEPS = 150
ROUNDS = 3
COMPUTE_MS = 10.0


def measure(report: Report, data: fs.Dataset, options: Any) -> None:
    compute = gemms(COMPUTE_MS)
    rows = affordable_rows(data)
    pipeline = data.map("image", fs.decode_image(), fs.random_resized_crop(224)).shuffle(seed=1).batch(rows)
    finish = {"image": fs.finish_pictures("bfloat16", layout="channels_last", flip=0.5)}
    with pipeline.loader(device="cuda:0", finish=finish) as loader:
        batches = endless(loader)

        def with_data() -> None:
            image = next(batches)["image"].torch()
            image[:1, :1, :1, :1].add_(0)
            compute()

        for _ in range(20):
            with_data()
        # In turn, since the GPU's clocks change as it warms.
        rounds = [(a_step(compute), a_step(with_data)) for _ in range(ROUNDS)]
    alone, fed = (sorted(times)[ROUNDS // 2] for times in zip(*rounds, strict=True))
    report.note(f"waits: batches of {rows}, as many as these CPUs decode in 80 % of the time")
    report.add("waits: a step of about 10 ms with data", "ms", fed, alone, "< 101 %")


def a_step(work: Callable[[], None]) -> float:
    """Milliseconds of one, where a trainer reads its loss every step: nothing runs ahead."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(STEPS):
        work()
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / STEPS * 1e3


def affordable_rows(data: fs.Dataset) -> int:
    """Rows that the CPUs decode in 80 % of the time that the GPU computes."""
    pipeline = data.map("image", fs.decode_image(), fs.random_resized_crop(224)).shuffle(seed=1).batch(64)
    with pipeline.loader() as loader:
        a_second = 64 / seconds_a_batch(loader, warm_up=10, batches=40)
    return max(1, int(a_second * COMPUTE_MS / 1e3 * 0.8))
