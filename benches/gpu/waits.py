"""The time that the GPU waits for data while products of matrices fill it for 10 ms per batch."""

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
        report.note(f"waits: batches of {rows} rows, which these CPUs decode in 80 % of the time")
        for reads_loss, asked in ((False, "< 101 %"), (True, "")):
            # The cases take turns, because the GPU's clocks change as it warms up.
            rounds = [(a_step(compute, reads_loss), a_step(with_data, reads_loss)) for _ in range(ROUNDS)]
            alone, fed = (sorted(times)[ROUNDS // 2] for times in zip(*rounds, strict=True))
            what = (
                "waits: with data, and the CPU waiting for each"
                if reads_loss
                else "waits: a step of about 10 ms with data"
            )
            report.add(what, "ms", fed, alone, asked)
        before, begun = loader.stats()["waited_seconds"], time.perf_counter()
        a_step(with_data, True)
        waited = loader.stats()["waited_seconds"] - before
        report.add(
            "waits: the caller's time in next()",
            "%",
            waited / (time.perf_counter() - begun) * 100,
            asked="< 1 %",
        )


def a_step(work: Callable[[], None], reads_loss: bool) -> float:
    """Returns the milliseconds of a step. If a trainer reads its loss in every step, nothing runs ahead."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(STEPS):
        work()
        if reads_loss:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / STEPS * 1e3


def affordable_rows(data: fs.Dataset) -> int:
    """Returns the number of rows that the CPUs decode in 80 % of the time that the GPU computes."""
    pipeline = data.map("image", fs.decode_image(), fs.random_resized_crop(224)).shuffle(seed=1).batch(64)
    with pipeline.loader() as loader:
        a_second = 64 / seconds_a_batch(loader, warm_up=10, batches=40)
    return max(1, int(a_second * COMPUTE_MS / 1e3 * 0.8))
