"""Compares the first batch of `fs.from_torch` with that of a torch DataLoader that spawns as many processes.

    scripts/python benches/python/from_torch.py                  # rounds alternate
    scripts/python benches/python/from_torch.py --samples 1281167 --rounds 5

Both sides get the same torchvision data set, which makes images and transforms them with torchvision v2, in the same
number of processes. Each side of a round is a new Python program. Time counts from making the loader, when torch,
torchvision and feedstock are imported, until the first batch. Starting processes that import torch is most of it.
Afterwards, the rate over 64 batches is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

BATCH = 32
BATCHES = 64


def dataset_of(samples: int) -> Any:
    import torchvision
    from torchvision.transforms import v2

    chain = v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(112), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4)]
    )
    return torchvision.datasets.FakeData(samples, (3, 128, 128), transform=chain)


def run(side: str, samples: int, processes: int) -> None:
    """Prints seconds until the first batch, and samples per second after it."""
    import torch

    import feedstock as fs

    dataset = dataset_of(samples)
    begun = time.perf_counter()
    if side == "feedstock":
        pipeline = fs.from_torch(dataset, identity="1", num_workers=processes).shuffle(seed=1).batch(BATCH)
        loader: Any = pipeline.loader(output="torch")
    else:
        loader = torch.utils.data.DataLoader(
            dataset, BATCH, shuffle=True, num_workers=processes, multiprocessing_context="spawn"
        )
    batches = iter(loader)
    images, _ = next(batches)
    first = time.perf_counter() - begun
    assert images.shape == (BATCH, 3, 112, 112)
    begun = time.perf_counter()
    for _ in range(BATCHES):
        next(batches)
    print(json.dumps([first, BATCHES * BATCH / (time.perf_counter() - begun)]), flush=True)


def measured(side: str, options: argparse.Namespace, cache: str) -> tuple[float, float]:
    command = [sys.executable, __file__, "--side", side]
    command += ["--samples", str(options.samples), "--processes", str(options.processes)]
    environment = {**os.environ, "FEEDSTOCK_CACHE": cache}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    first, rate = json.loads(done.stdout.splitlines()[-1])
    return first, rate


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--samples", type=int, default=100_000, help="items of the data set (default 100,000)"
    )
    parser.add_argument("--processes", type=int, default=2, help="of both sides (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--side", choices=("feedstock", "torch"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        run(options.side, options.samples, options.processes)
        return
    ours, theirs = [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:  # the first run also writes the indexes and the catalog
            ours.append(measured("feedstock", options, cache))
        theirs.append(measured("torch", options, "unused"))
    for place, name in enumerate(("first batch, seconds", "samples per second")):
        mine, peer = (statistics.median(one[place] for one in side) for side in (ours, theirs))
        ratios = [round(a[place] / b[place], 2) for a, b in zip(ours, theirs, strict=True)]
        print(
            f"{name}: from_torch {mine:,.2f}, DataLoader {peer:,.2f}, ratio {mine / peer:.2f}; rounds {ratios}"
        )


if __name__ == "__main__":
    main()
