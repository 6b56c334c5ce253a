"""Compares DINO's 2 + 8 crops by `fs.views` with ten decodes, and with torchvision in a DataLoader, on this machine.

    scripts/python benches/python/views.py                # both parts, rounds alternate
    scripts/python benches/python/views.py geometry       # one of them: geometry, recipe

`geometry`: crops, resizes and flips of the ten views of an image, which is decoded once, against ten maps that decode
the whole image (resized to 8 px). CPU time of one thread. `recipe`: the whole of DINO's augmentation (jitter, grey,
blur, solarization) against the same transforms of torchvision v2 in a DataLoader with a process for each core. Samples
per second after the first batch. Images are JPEGs of about 500 × 375 px.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from PIL import Image

import feedstock as fs

ROUNDS = 3
BATCH = 16
VIEWS = 10


def crops(size: int, scale: tuple[float, float]) -> list[fs.Op]:
    return [
        fs.random_resized_crop(size, scale=scale, filter="bicubic"),
        fs.horizontal_flip(),
    ]


def augment(blur: float, solarize: float = 0.0) -> list[fs.Op]:
    return [
        fs.random_apply([fs.color_jitter(0.4, 0.4, 0.2, 0.1)], 0.8),
        fs.grayscale(0.2),
        fs.random_apply([fs.gaussian_blur(9, (0.1, 2.0))], blur),
        fs.solarize(128, solarize),
    ]


LARGE, SMALL = crops(224, (0.4, 1.0)), crops(96, (0.05, 0.4))
GEOMETRY = fs.views({"global_1": LARGE, "global_2": LARGE, "local": (8, SMALL)})
RECIPE = fs.views(
    {
        "global_1": [*LARGE, *augment(1.0)],
        "global_2": [*LARGE, *augment(0.1, 0.2)],
        "local": (8, [*SMALL, *augment(0.5)]),
    }
)


class Crops(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The recipe with Pillow and torchvision, in memory."""

    def __init__(self, samples: list[bytes]) -> None:
        from torchvision.transforms import v2

        self.samples = samples
        bicubic = v2.InterpolationMode.BICUBIC

        def transform(size: int, scale: tuple[float, float], blur: float, solarize: float = 0.0) -> Any:
            return v2.Compose(
                [
                    v2.RandomResizedCrop(size, scale=scale, interpolation=bicubic),
                    v2.RandomHorizontalFlip(),
                    v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
                    v2.RandomGrayscale(0.2),
                    v2.RandomApply([v2.GaussianBlur(9, (0.1, 2.0))], blur),
                    v2.RandomSolarize(128, solarize),
                    v2.PILToTensor(),
                ]
            )

        self.first = transform(224, (0.4, 1.0), 1.0)
        self.second = transform(224, (0.4, 1.0), 0.1, 0.2)
        self.local = transform(96, (0.05, 0.4), 0.5)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        image = Image.open(io.BytesIO(self.samples[index])).convert("RGB")
        local = torch.stack([self.local(image) for _ in range(8)])
        return self.first(image), self.second(image), local


def one_thread(_: int) -> None:
    """Of a DataLoader's processes, as torch sets it too; cores are shared by processes."""
    torch.set_num_threads(1)


def cpu_seconds(pipeline: fs.Pipeline) -> float:
    """Returns the CPU time of an epoch of this process, with one thread."""
    with pipeline.options(threads=1).epochs(1).loader() as loader:
        begun = resource.getrusage(resource.RUSAGE_SELF)
        for _ in loader:
            pass
        ended = resource.getrusage(resource.RUSAGE_SELF)
    return ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime


def rate(batches: Iterable[Any], first: str | int) -> float:
    """Returns samples per second after the first batch of an epoch."""
    iterator = iter(batches)
    next(iterator)
    begun, samples = time.perf_counter(), 0
    for batch in iterator:
        samples += len(batch[first])
    return samples / (time.perf_counter() - begun)


def geometry(uri: str) -> None:
    data = fs.Dataset(uri)
    views = data.map("image", fs.decode_image(scaled=False), GEOMETRY).batch(BATCH)
    decodes = data.pipeline()
    for number in range(VIEWS):
        whole = fs.decode_image(scaled=False), fs.resize((8, 8), filter="nearest")
        decodes = decodes.map("image", *whole, output=f"of_{number}")
    decodes = decodes.batch(BATCH)
    ratios = []
    for turn in range(ROUNDS):
        ours, theirs = cpu_seconds(views), cpu_seconds(decodes)
        ratios.append(ours / theirs)
        print(
            f"geometry, round {turn}: {ours:.2f} s for 2 + 8 crops, {theirs:.2f} s for ten decodes",
            flush=True,
        )
    print(f"geometry: {statistics.median(ratios):.2f} x the CPU time of ten decodes")


def recipe(uri: str, samples: list[bytes], processes: int) -> None:
    pipeline = fs.Dataset(uri).map("image", fs.decode_image(), RECIPE).batch(BATCH).options(threads=processes)
    ratios = []
    for turn in range(ROUNDS):
        with pipeline.epochs(1).loader(output="torch") as loader:
            ours = rate(loader, "global_1")
        theirs = rate(
            torch.utils.data.DataLoader(
                Crops(samples),
                BATCH,
                num_workers=processes,
                worker_init_fn=one_thread,
                drop_last=True,
            ),
            0,
        )
        ratios.append(ours / theirs)
        print(
            f"recipe, round {turn}: {ours:.1f} samples/s, {theirs:.1f} of the DataLoader",
            flush=True,
        )
    print(f"recipe: {statistics.median(ratios):.2f} x torchvision in a DataLoader of {processes} processes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["geometry", "recipe"], help="default: both")
    parser.add_argument("--samples", type=int, default=768)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        command = [sys.executable, "-m", "feedstock", "synth", "imagenet", str(data)]
        subprocess.run(
            [*command, "--samples", str(options.samples), "--layout", "parquet"],
            check=True,
        )
        if options.part != "recipe":
            geometry(str(data))
        if options.part != "geometry":
            tables = [pq.read_table(path, columns=["image"]) for path in sorted(data.rglob("*.parquet"))]
            samples = [one["bytes"] for table in tables for one in table["image"].to_pylist()]
            recipe(str(data), samples, len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    main()
