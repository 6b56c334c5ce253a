"""Measures the cost of feedstock's guarantees in Python, on this machine: see `--help`.

scripts/python benches/python/loader.py            # everything
scripts/python benches/python/loader.py rate state # selected parts
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
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

import feedstock as fs

ROUNDS = 5
OPS = "decode_image,random_resized_crop:224,horizontal_flip"


def command(*arguments: object) -> str:
    words = [sys.executable, "-m", "feedstock", *map(str, arguments)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def rate(folder: Path) -> None:
    """Compares samples per second of this package's loader with those of the Rust iterator (`feedstock
    bench`)."""
    pictures = folder / "images"
    command("synth", "imagenet", pictures, "--samples", 2000, "--seed", 1, "--quiet")
    pipeline = (
        fs.Dataset(pictures)
        .map("image", fs.decode_image(), fs.random_resized_crop(224), fs.horizontal_flip())
        .shuffle(seed=0)
        .batch(64)
        .options(threads=2)
    )
    python, rust = [], []
    for _ in range(ROUNDS):
        report = command("bench", pictures, "--ops", OPS, "--batch-size", 64, "--threads", 2, "--json")
        rust.append(json.loads(report)["samples_per_s"])
        with pipeline.loader() as loader:
            next(iter(loader))
            begun, samples = time.perf_counter(), 0
            for batch in loader:
                samples += batch["image"].torch().shape[0]
            python.append(samples / (time.perf_counter() - begun))
    ratio = statistics.median(python) / statistics.median(rust)
    print(
        f"rate: Python {statistics.median(python):,.0f}/s, Rust {statistics.median(rust):,.0f}/s (medians of {ROUNDS})"
    )
    print(f"rate: ratio {ratio:.3f}, goal 0.97")


def state(folder: Path) -> None:
    """Measures the state's size and time, and a resume in the middle of an epoch as long as ImageNet's, with
    its first batch."""
    samples, files = 1_280_000, 16
    data = folder / "long"
    data.mkdir()
    generator = np.random.default_rng(1)
    for number in range(files):
        rows = samples // files
        encoded = [generator.bytes(110) for _ in range(rows)]  # a thousandth of an image
        table = pyarrow.table({"image": pyarrow.array(encoded, pyarrow.binary()), "label": np.arange(rows)})
        path = data / f"train-{number:05}-of-{files:05}.parquet"
        pyarrow.parquet.write_table(table, path, row_group_size=1000, data_page_size=4096, compression="none")
    dataset = fs.Dataset(data, block_bytes=4096)  # as many blocks as ImageNet has of 4 MiB
    pipeline = dataset.shuffle(seed=1, window=16_384).batch(256)
    with pipeline.loader() as loader:
        loader.seek(2500)
        next(iter(loader))
        times = []
        for _ in range(100):
            begun = time.perf_counter()
            saved = loader.state_dict()
            times.append(time.perf_counter() - begun)
    print(
        f"state: {len(json.dumps(saved))} bytes, goal 1024; {statistics.median(times) * 1e3:.3f} ms, goal 1"
    )
    resumes, opens = [], []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        fresh = fs.Dataset(data, block_bytes=4096).shuffle(seed=1, window=16_384).batch(256)
        opens.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        with fresh.loader() as loader:
            loader.load_state_dict(saved)
            next(iter(loader))
            resumes.append(time.perf_counter() - begun)
    print(
        f"state: resume at {saved['position']:,} of {samples:,} samples, including the first batch: "
        f"{statistics.median(resumes):.3f} s, goal 1; opening the catalog {statistics.median(opens):.3f} s more"
    )


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(folder: Path) -> None:
    """Measures resident memory over 10,000 batches, with the tensors of each."""
    pictures = folder / "small"
    command("synth", "imagenet", pictures, "--samples", 200, "--seed", 1, "--quiet")
    pipeline = (
        fs.Dataset(pictures)
        .map("image", fs.decode_image(), fs.random_resized_crop(32))
        .shuffle(seed=0)
        .batch(4)
    )
    marks = {}
    with pipeline.loader() as loader:
        taken = 0
        while taken < 10_000:
            for batch in loader:
                batch["image"].torch(), batch["label"].numpy(), batch["image_path"], batch.sample_ids
                taken += 1
                if taken in (1_000, 2_500, 5_000, 10_000):
                    marks[taken] = resident() / 2**20
    for taken, size in marks.items():
        print(f"memory: {size:.1f} MiB after {taken:,} batches")
    print(f"memory: {marks[10_000] - marks[1_000]:+.1f} MiB from batch 1,000 to 10,000, goal: constant")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the cost of feedstock's guarantees in Python.")
    parts = {"rate": rate, "state": state, "memory": memory}
    parser.add_argument("part", nargs="*", choices=[*parts, []], help="what to measure; default: everything")
    chosen = parser.parse_args().part or list(parts)
    with tempfile.TemporaryDirectory(prefix="feedstock-bench-") as folder:
        os.environ["FEEDSTOCK_CACHE"] = f"{folder}/cache"
        for part in chosen:
            parts[part](Path(folder))


if __name__ == "__main__":
    main()
