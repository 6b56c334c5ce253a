"""The fleet compared with Ray Data: the same cluster, the same Parquet files, batches of the same shape in torch.

scripts/python benches/python/fleet_ray.py
scripts/python benches/python/fleet_ray.py --cpus 2 --samples 4000 --epochs 2 --rounds 3

Ray Data: ``read_parquet → map_batches (decode, crop, resize, flip) → streaming_split → iter_torch_batches``, as in its
documentation: a callable class in a pool with one actor per CPU, and blocks of about one batch. Pillow decodes images
only as large as the crop needs (``draft``). It does not shuffle; feedstock does. The fleet has one worker that reserves
all of the cluster's CPUs. This process reads both, and reserves no CPU.

An epoch is timed from the request for its first batch to the arrival of its last one. The first epoch of each run is
not counted. Contenders take turns; medians are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import feedstock as fs

SIDE = 224
BATCH = 64
BUDGET_BYTES = 256 << 20  # holds the window, but not the data set
WINDOW = 1024
ASKED = 3.0

# Size of the blocks that actors deliver: about one batch. Ray's default of 128 MiB would hold 900 images back.
BLOCK_BYTES = 16 << 20

# CPUs that Ray counts for an actor, which keeps one busy. The rest is for the tasks that read, which could not start
# without it.
ACTOR_CPUS = 0.5


class Decode:
    """The callable class that Ray Data's actors run: encoded images to crops."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)  # each actor has one CPU

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        out = np.stack([self.crop(picture["bytes"]) for picture in batch["image"]])
        return {"image": out, "label": batch["label"]}

    def crop(self, encoded: bytes) -> np.ndarray:
        import io

        import torch
        from PIL import Image
        from torchvision.transforms import RandomResizedCrop

        image: Image.Image = Image.open(io.BytesIO(encoded))
        width, height = image.size
        size = torch.empty(1, height, width)  # only its shape is used
        top, left, rows, columns = RandomResizedCrop.get_params(size, [0.08, 1.0], [3 / 4, 4 / 3])
        if rows >= 2 * SIDE and columns >= 2 * SIDE:
            scale = min(rows, columns) / SIDE
            image.draft("RGB", (int(width / scale), int(height / scale)))
        x, y = image.size[0] / width, image.size[1] / height
        box = (left * x, top * y, (left + columns) * x, (top + rows) * y)
        image = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)


def epochs_of_ray_data(files: str, cpus: int) -> Callable[[], Iterator[Any]]:
    import ray

    ray.data.DataContext.get_current().target_max_block_size = BLOCK_BYTES
    dataset = ray.data.read_parquet(files).select_columns(["image", "label"])
    actors = ray.data.ActorPoolStrategy(size=cpus)
    dataset = dataset.map_batches(Decode, batch_size=BATCH, compute=actors, num_cpus=ACTOR_CPUS)
    (shard,) = dataset.streaming_split(1)
    return lambda: iter(shard.iter_torch_batches(batch_size=BATCH, drop_last=True, prefetch_batches=2))


def samples_per_s(epoch: Callable[[], Iterator[Any]], epochs: int) -> float:
    counted, begun = 0, 0.0
    for number in range(epochs + 1):
        if number == 1:
            counted, begun = 0, time.perf_counter()
        for batch in epoch():
            images, labels = batch["image"], batch["label"]
            assert tuple(images.shape) == (BATCH, SIDE, SIDE, 3), images.shape
            assert str(images.dtype) == "torch.uint8", images.dtype
            assert len(labels) == BATCH
            counted += BATCH
    return counted / (time.perf_counter() - begun)


def ray_data(files: str, cpus: int, epochs: int) -> float:
    return samples_per_s(epochs_of_ray_data(files, cpus), epochs)


def fleet(files: str, cpus: int, epochs: int) -> float:
    from feedstock.ray import Fleet

    pipeline = (
        fs.Dataset(files)
        .map("image", fs.decode_image(), fs.random_resized_crop(SIDE), fs.horizontal_flip())
        .shuffle(seed=7, window=WINDOW)
        .batch(BATCH)
        .options(budget_bytes=BUDGET_BYTES)
    )
    with Fleet(pipeline, 1, cpus_per_worker=cpus, local="never") as workers:
        workers.wait()
        with workers.loader(output="torch") as loader:
            return samples_per_s(lambda: iter(loader), epochs)


def main() -> None:
    parser = argparse.ArgumentParser(description="The fleet compared with Ray Data on one cluster.")
    parser.add_argument(
        "--cpus", type=int, default=len(os.sched_getaffinity(0)), help="CPUs of the cluster; default: all"
    )
    parser.add_argument("--samples", type=int, default=4000, help="number of images of about 110 KB")
    parser.add_argument(
        "--epochs", type=int, default=2, help="epochs counted in each run, after one that is not"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, help="existing Parquet files of images")
    options = parser.parse_args()
    import ray

    with tempfile.TemporaryDirectory(prefix="fs-bench-") as folder:
        os.environ["FEEDSTOCK_CACHE"] = f"{folder}/cache"
        data = options.data
        if data is None:
            data = Path(folder) / "images" / "data"
            synth = [
                sys.executable,
                "-m",
                "feedstock",
                "synth",
                "imagenet",
                data.parent,
                "--seed",
                1,
                "--quiet",
            ]
            subprocess.run([*map(str, synth), "--samples", str(options.samples)], check=True)
        package = str(Path(fs.__file__).parents[1])
        runtime_env = {"env_vars": {"PYTHONPATH": package, "FEEDSTOCK_CACHE": f"{folder}/cache"}}
        ray.init(num_cpus=options.cpus, include_dashboard=False, log_to_driver=False, runtime_env=runtime_env)
        ray.data.DataContext.get_current().enable_progress_bars = False
        contenders = {"fleet": fleet, "Ray Data": ray_data}
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(1, options.rounds + 1):
            for name, contender in contenders.items():
                rates[name].append(contender(str(data), options.cpus, options.epochs))
                load = " ".join(f"{value:.1f}" for value in os.getloadavg())
                print(
                    f"round {number}: {name} {rates[name][-1]:,.0f} images/s (load average {load})",
                    flush=True,
                )
        ray.shutdown()
    ratios = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(", ".join(f"{name} {value:,.0f} images/s" for name, value in medians.items()), end=" ")
    print(f"(medians of {options.rounds}, {options.cpus} CPUs)")
    print(f"ratio {statistics.median(ratios):.2f} (median of rounds), goal {ASKED:.0f}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
