"""Sample data: made by the package's command, or of random pixels, written by Pillow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image


def synth(*arguments: object) -> None:
    """Runs `feedstock synth` with `arguments`."""
    command = [sys.executable, "-m", "feedstock", "synth", *map(str, arguments), "--quiet"]
    subprocess.run(command, check=True, timeout=300)


def noise_images(folder: Path, count: int, side: int, extension: str) -> Path:
    """Writes `count` images of `side` × `side` random pixels of one class, and returns the folder."""
    (folder / "class").mkdir()
    random = np.random.default_rng(1)
    for sample in range(count):
        pixels = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "class" / f"{sample:02}{extension}")
    return folder
