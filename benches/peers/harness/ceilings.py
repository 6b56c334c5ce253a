"""Measures what one core can do at best: bare codecs and bare chains, from the benches of ``ops/``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
COMMAND = ["cargo", "bench", "--locked", "-p", "feedstock-ops"]

# The build of the wheel: Cargo's bench profile is release; dev reuses what tests have built.
FLAGS: dict[str, list[str]] = {"release": [], "dev": ["--profile", "dev", "--all-features"]}

# The lines that each bench prints, and the names under which they are stored: samples per second on one core.
PICTURE_LINES = {
    "libjpeg-turbo, full decode": "libjpeg-turbo, full decode",
    "full decode + crop + resize + flip": "libjpeg-turbo and fast_image_resize, crop and flip",
    "decode_image,random_resized_crop:224,horizontal_flip": "feedstock's chain, pictures-train",
    "random_resized_crop:224, restart markers every 4 MCUs": "feedstock's chain, pictures-train, restart markers",
    "the same, normalize,to_chw (f32)": "feedstock's chain, pictures-f32",
    "decode_image,resize:256,center_crop:224": "feedstock's chain, pictures-eval",
}


SPEECH_LINES = {
    "symphonia alone": "symphonia, MP3 decode",
    "decode_audio,resample:16000,log_mel:80": "feedstock's chain, speech",
}
BENCH_CLIP_S = 5.0  # the duration to which the speech bench scales its costs


def measure(profile: str, clips: Path | None, clip_s: float) -> dict[str, float]:
    """Returns samples per second on one core. ``clips`` are audio clips with a mean duration of ``clip_s``."""
    found = parse_pictures(_output(profile, "decode_chain"))
    if clips is not None:
        found |= parse_speech(_output(profile, "speech_chain", {"FEEDSTOCK_BENCH_CLIPS": str(clips)}), clip_s)
    return found


def _output(profile: str, bench: str, environment: Mapping[str, str] | None = None) -> str:
    settings = {**os.environ, "FEEDSTOCK_BENCH_ROUNDS": "5", **(environment or {})}
    ended = subprocess.run(
        [*COMMAND, *FLAGS[profile], "--bench", bench],
        cwd=ROOT,
        env=settings,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return ended.stdout


def parse_pictures(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        match = re.match(r"\s*(.*?)\s+([\d.]+) images/s", line)
        if match and match[1] in PICTURE_LINES:
            found[PICTURE_LINES[match[1]]] = float(match[2])
    return found


def parse_speech(text: str, clip_s: float) -> dict[str, float]:
    """Parses lines of CPU milliseconds for 5 s of audio, and returns audio clips per second."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"(\S.*?)\s+([\d.]+)$", line)
        if match and match[1] in SPEECH_LINES:
            found[SPEECH_LINES[match[1]]] = 1000 / float(match[2]) * BENCH_CLIP_S / clip_s
    return found
