"""Compares `map_rows` with a torch DataLoader that has as many spawned processes, on this machine.

    scripts/python benches/python/rows.py                 # both parts, rounds alternate
    scripts/python benches/python/rows.py python          # one of them: python, decoding

Both sides run the same function, pure Python of about 1 ms for each sample, in the same number of processes, and give
batches of torch tensors. `python`: samples are 12 KiB of bytes; the DataLoader has them in memory, feedstock reads
Parquet. `decoding`: samples are JPEGs, which the DataLoader's processes decode and crop with Pillow, feedstock's
threads with ops. Rates are measured after the first batch.
"""

from __future__ import annotations

import argparse
import io
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import feedstock as fs

ROUNDS = 3
BATCH = 64
SIDE = 64


class Work:
    """Pure Python of a number of turns of a loop, which change nothing."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def __call__(self) -> None:
        total = 0
        for number in range(self.turns):
            total ^= number


def calibrated(seconds: float) -> Work:
    """Returns work that takes about `seconds` now: the median of 50."""
    work = Work(10_000)
    times = []
    for _ in range(50):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return Work(int(10_000 * seconds / statistics.median(times)))


class Pixels:
    """A function of rows: bytes to an image, after some work."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __call__(self, row: dict[str, Any], rng: Any) -> dict[str, Any]:
        self.work()
        return {"image": np.frombuffer(row["image"], np.uint8).reshape(SIDE, SIDE, 3) ^ 255}


class Inverted:
    """A function of rows: an image, after some work."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __call__(self, row: dict[str, Any], rng: Any) -> dict[str, Any]:
        self.work()
        return {"image": row["image"] ^ 255}


class InMemory(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The samples and the work, for a DataLoader."""

    def __init__(self, samples: list[tuple[bytes, int]], work: Work, decode: bool) -> None:
        self.samples, self.work, self.decode = samples, work, decode

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        encoded, label = self.samples[index]
        pixels = cropped(encoded) if self.decode else np.frombuffer(encoded, np.uint8).reshape(SIDE, SIDE, 3)
        self.work()
        return pixels ^ 255, label


def cropped(encoded: bytes) -> np.ndarray:
    """Does what `random_resized_crop(224)` does, by Pillow."""
    from PIL import Image

    image = Image.open(io.BytesIO(encoded)).convert("RGB")
    scale = np.sqrt(np.random.uniform(0.08, 1.0))
    width, height = int(image.width * scale), int(image.height * scale)
    left, top = np.random.randint(image.width - width + 1), np.random.randint(image.height - height + 1)
    box = (left, top, left + width, top + height)
    return np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR, box=box))


def rate(batches: Iterable[Any]) -> float:
    """Returns samples per second after the first batch of an epoch."""
    iterator = iter(batches)
    next(iterator)
    begun, samples = time.perf_counter(), 0
    for batch in iterator:
        samples += len(batch[0] if isinstance(batch, list) else batch["image"])
    return samples / (time.perf_counter() - begun)


def compare(name: str, pipeline: fs.Pipeline, dataset: InMemory, processes: int) -> None:
    ours, theirs = [], []
    for _ in range(ROUNDS):
        with pipeline.epochs(1).loader(output="torch") as loader:
            ours.append(rate(loader))
        loader = torch.utils.data.DataLoader(
            dataset,
            BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=processes,
            multiprocessing_context="spawn",
        )
        theirs.append(rate(loader))
        del loader
    mine, peer = statistics.median(ours), statistics.median(theirs)
    print(
        f"{name}: map_rows {mine:,.0f}/s, DataLoader {peer:,.0f}/s, {processes} processes, medians of {ROUNDS}"
    )
    print(
        f"{name}: ratio {mine / peer:.2f}; rounds {[round(a / b, 2) for a, b in zip(ours, theirs, strict=True)]}"
    )


def python(folder: Path, processes: int, work: Work) -> None:
    random = np.random.default_rng(0)
    samples = [(random.bytes(SIDE * SIDE * 3), label) for label in range(4096)]
    table = pa.table({"image": [image for image, _ in samples], "label": [label for _, label in samples]})
    (folder / "bytes").mkdir()
    pq.write_table(table, folder / "bytes" / "a.parquet", row_group_size=256)
    pipeline = fs.Dataset(folder / "bytes").shuffle(seed=1).batch(BATCH)
    mapped = pipeline.map_rows(Pixels(work), inputs=["image"], num_workers=processes)
    compare("python", mapped, InMemory(samples, work, decode=False), processes)


def decoding(folder: Path, processes: int, work: Work) -> None:
    images = folder / "images"
    command = [
        sys.executable,
        "-m",
        "feedstock",
        "synth",
        "imagenet",
        str(images),
        "--samples",
        "2048",
        "--seed",
        "1",
    ]
    subprocess.run([*command, "--layout", "parquet", "--quiet"], check=True)
    rows = pq.read_table(images).to_pylist()
    samples = [(row["image"]["bytes"], int(row["label"])) for row in rows]
    pipeline = fs.Dataset(images).map("image", fs.decode_image(), fs.random_resized_crop(224))
    mapped = (
        pipeline.shuffle(seed=1)
        .batch(BATCH)
        .map_rows(Inverted(work), inputs=["image"], num_workers=processes)
    )
    compare("decoding", mapped, InMemory(samples, work, decode=True), processes)


def main() -> None:
    parts = {"python": python, "decoding": decoding}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all")
    parser.add_argument("--processes", type=int, default=2, help="of both sides (default 2)")
    parser.add_argument(
        "--milliseconds", type=float, default=1.0, help="of the work for a sample (default 1)"
    )
    options = parser.parse_args()
    work = calibrated(options.milliseconds / 1000)
    for name in options.parts or parts:
        with tempfile.TemporaryDirectory() as folder:
            parts[name](Path(folder), options.processes, work)


if __name__ == "__main__":
    main()
