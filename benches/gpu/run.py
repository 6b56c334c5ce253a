"""Measures the cost of feedstock's guarantees on GPUs, on this machine's first GPU:

    FEEDSTOCK_RELEASE=1 scripts/python benches/gpu/run.py            # everything: about ten minutes
    FEEDSTOCK_RELEASE=1 scripts/python benches/gpu/run.py copies     # selected parts

Every figure is compared with a ceiling that the same run measured. The script prints a table and stores it in
benches/gpu/results-<machine>.json. Without a GPU it reports that and measures nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch
from report import Report

import feedstock as fs


def main() -> None:
    # Imported when selected: each is about one part, and the last two need torchvision.
    parts = ("equality", "copies", "kernels", "waits", "decoding", "training")
    parser = argparse.ArgumentParser(description="Measures the cost of feedstock's guarantees on GPUs.")
    parser.add_argument("part", nargs="*", choices=[*parts, []], help="what to measure; default: everything")
    parser.add_argument("--samples", type=int, default=8000, help="number of sample images (500 × 375 px)")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100, help="steps of a training loop, after a warm-up")
    parser.add_argument("--data", help="an existing data set of JPEGs with labels, instead of sample images")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: nothing was measured (torch.cuda.is_available() is False)")
        sys.exit(2)
    with tempfile.TemporaryDirectory(prefix="feedstock-gpu-") as folder:
        os.environ["FEEDSTOCK_CACHE"] = f"{folder}/cache"
        data = options.data or synth(Path(folder), options.samples)
        report = Report()
        for part in options.part or parts:
            module = __import__(part)
            module.measure(report, fs.Dataset(data), options)
        report.keep(Path(__file__).parent)


def synth(folder: Path, samples: int) -> str:
    import subprocess

    words = [sys.executable, "-m", "feedstock", "synth", "imagenet", f"{folder}/data"]
    subprocess.run([*words, "--samples", str(samples), "--seed", "1", "--quiet"], check=True)
    return f"{folder}/data"


if __name__ == "__main__":
    main()
