"""Decodes files with the reference decoders: Pillow for images, libsndfile or else ffmpeg for audio."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image, ImageFile

ImageFile.LOAD_TRUNCATED_IMAGES = False
Image.init()  # registers every format: `Image.open(formats=…)` fails for those that are not
# feedstock's own limit (`max_pixels`) corresponds to Pillow's; the survey tests formats, not decompression bombs.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)

FFMPEG_SECONDS = 300


class RefusedError(Exception):
    """The reference does not decode the file."""


@dataclass
class Decoded:
    """RGB of shape [height, width, 3], or samples of shape [channels, frames] with their sample rate in Hz."""

    values: np.ndarray
    sample_rate: int
    seconds: float
    decoder: str


def image(path: Path) -> Decoded:
    """Decodes the first frame of an image to RGB. Raises RefusedError with Pillow's message."""
    started = time.perf_counter()
    try:
        with Image.open(path, formats=("JPEG", "PNG", "WEBP")) as file:
            file.load()
            mode = file.mode
            if mode.startswith("I"):
                # feedstock keeps the high byte of 16-bit channels; Pillow's convert() would clip them.
                grey = (np.asarray(file).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
                values = np.repeat(grey[:, :, None], 3, axis=2)
            else:
                values = np.asarray(file.convert("RGB"))
    except Exception as error:  # every way in which Pillow rejects a file
        raise RefusedError(f"{type(error).__name__}: {error}") from error
    return Decoded(values, 0, time.perf_counter() - started, f"Pillow {mode}")


@contextlib.contextmanager
def named(path: Path, extension: str) -> Iterator[Path]:
    """Yields a path to the file that ends in `extension`."""
    if path.suffix.lower() == extension:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / f"clip{extension}"
        link.symlink_to(path.resolve())
        yield link


def audio(path: Path, file_format: str) -> Decoded:
    """Decodes all channels of an audio clip: with soundfile, or else with ffmpeg if it is installed.

    `file_format` is that of the content. libsndfile recognises some MP3s by their name only, so it gets every file
    under a name with the extension of its format.
    """
    started = time.perf_counter()
    try:
        with named(path, f".{file_format}") as renamed:
            values, rate = soundfile.read(renamed, dtype="float32", always_2d=True)
        return Decoded(values.T, rate, time.perf_counter() - started, "soundfile")
    except Exception as error:  # every way in which libsndfile rejects a file
        first = f"soundfile: {error}"
    if shutil.which("ffmpeg") is None:
        raise RefusedError(first)
    return ffmpeg(path, first)


def ffmpeg(path: Path, first: str) -> Decoded:
    """Decodes audio with ffmpeg; every line that it prints counts as an error."""
    probe = [
        "ffprobe",
        "-v",
        "error",
        "-select_streams",
        "a:0",
        "-show_entries",
        "stream=sample_rate,channels",
    ]
    shown = subprocess.run(
        [*probe, "-of", "csv=p=0", path], capture_output=True, text=True, timeout=FFMPEG_SECONDS
    )
    fields = shown.stdout.split("\n")[0].split(",")
    if len(fields) < 2 or not fields[0].isdigit():
        raise RefusedError(f"{first}; ffprobe: {shown.stderr.strip()[:200]}")
    rate, channels = int(fields[0]), int(fields[1])
    started = time.perf_counter()
    command = ["ffmpeg", "-nostdin", "-xerror", "-v", "error", "-i", path, "-map", "a:0", "-f", "f32le", "-"]
    run = subprocess.run(command, capture_output=True, timeout=FFMPEG_SECONDS)
    if run.returncode != 0 or run.stderr or not run.stdout:
        raise RefusedError(f"{first}; ffmpeg: {run.stderr.decode(errors='replace').strip()[:200]}")
    values = np.frombuffer(run.stdout, dtype="<f4").reshape(-1, channels)
    return Decoded(values.T, rate, time.perf_counter() - started, "ffmpeg")
