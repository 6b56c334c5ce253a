"""Compares the start on a folder of 1.2 million images with ImageFolder and a DataLoader, on this machine.

    scripts/python benches/python/folder.py                   # 1,200,000 entries: makes them first, some minutes
    scripts/python benches/python/folder.py --entries 100000

Each side opens the folder and takes one batch, in a separate process, after its imports. feedstock has a stored
catalog of an earlier run; ImageFolder lists the folder each time. Both keep the kernel's cache of the folders. The
images are a few JPEGs of 64 × 64 px under many names (hard links), in 1,000 folders of classes.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 1000
BATCH = 64
# Names that one file may have: ext4 allows 65,000.
LINKS = 50_000


def run(side: str, folder: str) -> None:
    """Prints seconds until the first batch."""
    import torch
    from torchvision import datasets
    from torchvision.transforms import v2

    import feedstock as fs

    begun = time.perf_counter()
    if side == "feedstock":
        pipeline = fs.Dataset(folder, progress=False).map("image", fs.decode_image(), fs.resize((64, 64)))
        images = next(iter(pipeline.shuffle(seed=1).batch(BATCH).loader(output="torch")))["image"]
    else:
        data = datasets.ImageFolder(folder, v2.Compose([v2.Resize((64, 64)), v2.PILToTensor()]))
        images, _ = next(iter(torch.utils.data.DataLoader(data, BATCH, shuffle=True, num_workers=2)))
    assert len(images) == BATCH
    print(json.dumps(time.perf_counter() - begun), flush=True)


def measured(side: str, folder: str) -> float:
    command = [sys.executable, __file__, "--side", side, "--folder", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def make(folder: Path, entries: int) -> None:
    """Links images into folders of classes, in turn."""
    files = folder / "files"
    files.mkdir()
    generator = np.random.default_rng(1)
    for number in range(-(-entries // LINKS)):
        pixels = generator.integers(0, 256, (64, 64, 3), np.uint8)
        encoded = io.BytesIO()
        Image.fromarray(pixels).save(encoded, "JPEG")
        (files / f"{number}.jpg").write_bytes(encoded.getvalue())
    for label in range(CLASSES):
        (folder / "data" / f"class_{label:04}").mkdir(parents=True)
    for number in range(entries):
        link = folder / "data" / f"class_{number % CLASSES:04}" / f"image_{number:07}.jpg"
        os.link(files / f"{number // LINKS}.jpg", link)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=1_200_000, help="default 1,200,000")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--side", choices=("feedstock", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        run(options.side, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEEDSTOCK_CACHE"] = f"{folder}/cache"
        make(Path(folder), options.entries)
        data = f"{folder}/data"
        print(
            f"first run, which builds the catalog: {measured('feedstock', data):.2f} s",
            flush=True,
        )
        ours, theirs = [], []
        for _ in range(options.rounds):
            ours.append(measured("feedstock", data))
            theirs.append(measured("torch", data))
        mine, peer = statistics.median(ours), statistics.median(theirs)
        print(f"feedstock {mine:.2f} s, ImageFolder and DataLoader {peer:.2f} s: ratio {mine / peer:.2f}")


if __name__ == "__main__":
    main()
