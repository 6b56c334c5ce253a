"""Writes the results of a survey as a page in Markdown."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from typing import Any

import collect
import PIL
import soundfile

VERDICTS = {
    "same": "same",
    "differs": "differs",
    "refused": "rejected",
    "unsupported": "unsupported codec",
    "reference_refuses": "rejected by the reference only",
    "both_refuse": "rejected by both",
}

INTRODUCTION = """\
# The survey: real files against the reference decoders

`scripts/survey --page docs/survey.md` makes this page. It decodes every image and audio clip of {packages} pinned
Debian and PyPI packages (`benches/survey/packages.txt`) with feedstock and with a reference decoder: {surveyed} of
{files} files{rest}.{times}

- **Reference**: Pillow {pillow} for images (`load()`, truncated images off); libsndfile {sndfile} for audio; ffmpeg
  {ffmpeg} if libsndfile rejects a file, with no line on standard error. If feedstock and libsndfile differ and
  feedstock and ffmpeg do not, the file counts as the same, and the section about references lists it.
- **Same**: an image differs by at most 1 of 255 levels in every pixel, without scaled decoding. An audio clip has the
  same sample rate, channels and number of samples, and in each channel the difference is at most −80 dB of full scale
  (RMS). No delay is allowed in any format. An M4A audio clip may end up to 1,023 samples before the reference's: the
  last frame's duration in the container gives the part that belongs to the audio clip, and ffmpeg {ffmpeg} keeps the
  rest.
- **Unsupported**: codecs that feedstock does not claim to decode; the error names the codec.
"""


UNTIMED = " Times are left out, because those of a debug build are not meaningful."
TIMED = """\
Elapsed times of the files that both decode, in a build with `--release`, on one machine with other programs running.
Pillow's and libsndfile's times include reading the file, and ffmpeg's the start of a process.
"""


def table(rows: Iterable[tuple[str, Counter[str]]], first: str) -> list[str]:
    """Returns a table with a row for each name and a column for each verdict that occurs."""
    rows = list(rows)
    used = [verdict for verdict in VERDICTS if any(counts[verdict] for _, counts in rows)]
    lines = [f"| {first} | files | " + " | ".join(VERDICTS[verdict] for verdict in used) + " |"]
    lines.append("|---|" + "---:|" * (len(used) + 1))
    for name, counts in rows:
        cells = [f"{counts[verdict]:,}" for verdict in used]
        lines.append(f"| {name} | {sum(counts.values()):,} | " + " | ".join(cells) + " |")
    return lines


def time_table(results: list[dict[str, Any]]) -> list[str]:
    """Returns a table of the decoders' times for the files of each format that both decode."""
    lines = [
        "| format | files | feedstock | reference | reference ÷ feedstock |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in collect.KINDS:
        timed = [result for result in results if result["format"] == name and "seconds" in result]
        own, theirs = (sum(result[key] for result in timed) for key in ("seconds", "reference_seconds"))
        if own > 0:
            lines.append(f"| {name} | {len(timed):,} | {own:.2f} s | {theirs:.2f} s | {theirs / own:.1f} |")
    return lines


def name_of(result: dict[str, Any]) -> str:
    return f"`{result['file']}`"


def measured(result: dict[str, Any]) -> str:
    """Returns what was measured about a file that is not the same, in a few words."""
    if "error" in result:
        return str(result["error"])
    if "levels" in result:
        return f"{result['levels']} levels" if result["levels"] is not None else f"sizes {result['sizes']}"
    frames = result["frames"]
    level = f"{result['decibels']} dB" if "decibels" in result else f"channels {result['channels']}"
    return f"{level}, {frames[0]:,} samples, reference {frames[1]:,}"


def render(
    results: list[dict[str, Any]],
    files: int,
    packages: list[collect.Package],
    explained: dict[str, str],
    *,
    are_timed: bool,
) -> str:
    """Returns the page about the results of some of the packages' `files`; `are_timed`: with the decoders' times."""
    version = subprocess.run(["ffmpeg", "-version"], capture_output=True, text=True, check=True).stdout
    ffmpeg = re.match(r"ffmpeg version ([0-9.]+)", version)
    introduction = INTRODUCTION.format(
        packages=len(packages),
        surveyed=f"{len(results):,}",
        files=f"{files:,}",
        rest="" if len(results) == files else ", a sample",
        times="" if are_timed else UNTIMED,
        pillow=PIL.__version__,
        sndfile=soundfile.__libsndfile_version__,
        ffmpeg=ffmpeg[1] if ffmpeg else "of an unknown version",
    )
    by_format = [
        (name, Counter(result["verdict"] for result in results if result["format"] == name))
        for name in collect.KINDS
    ]
    total = sum((counts for _, counts in by_format), Counter())
    by_package = [
        (
            f"{package.name} {package.version}",
            Counter(
                result["verdict"] for result in results if result["file"].split("/")[0] == package.folder
            ),
        )
        for package in packages
    ]
    lines = [introduction, "## By format", ""]
    lines += table([*by_format, ("**all**", total)], "format")
    lines += ["", "## Files that are rejected or differ", ""]
    listed = [result for result in results if result["verdict"] in ("refused", "differs", "unsupported")]
    lines += ["| file | result | measured | reason |", "|---|---|---|---|"] if listed else ["None."]
    for result in listed:
        reason = explained.get(result["file"], "" if result["verdict"] == "unsupported" else "**unknown**")
        lines.append(f"| {name_of(result)} | {VERDICTS[result['verdict']]} | {measured(result)} | {reason} |")
    disputed = [result for result in results if "soundfile_decibels" in result]
    lines += ["", "## Files about which the references differ", ""]
    lines += ["| file | libsndfile | ffmpeg |", "|---|---|---|"] if disputed else ["None."]
    for result in disputed:
        lines.append(f"| {name_of(result)} | {result['soundfile_decibels']} dB | {result['decibels']} dB |")
    warned = Counter(warning for result in results for warning in result.get("warnings", ()))
    lines += ["", "## Warnings about images", ""]
    lines += [f"- `{warning}`: {count}" for warning, count in sorted(warned.items())] or ["None."]
    if are_timed:
        lines += ["", "## Times", "", TIMED, *time_table(results)]
    lines += ["", "## By package", "", *table(by_package, "package")]
    return "\n".join(lines) + "\n"
