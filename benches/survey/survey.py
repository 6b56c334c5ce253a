"""Decodes each collected file with feedstock and with the reference, and reports what is rejected or differs.

Results are appended to a file as they come, so an interrupted run resumes. They belong to one build of the decoder;
another build starts from the beginning. Exit status: 0 if nothing is rejected or differs except the files of
explained.json, else 1.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import collect
import numpy as np
import page
import reference

MAX_LEVELS = 1
MAX_DECIBELS = -80.0
# Number of samples by which feedstock's audio clip may end before the reference's. No audio clip may begin earlier or
# later. In MP4 the last frame's duration gives the part that belongs to the audio clip; ffmpeg 5.1 keeps the rest.
ALLOWED_PADDING = {"m4a": 1023}
# Parts of feedstock's errors about codecs that it does not claim to decode.
UNSUPPORTED = ("which feedstock does not decode", "first stream is not Vorbis")
SLOWER = 1.5
LEAST_SECONDS = 0.005


class Feedstock:
    """Runs the program `decode_files`, which decodes one file at a time."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def decode(self, kind: str, path: Path) -> tuple[dict[str, Any], bytes]:
        """Returns the header and the data of the answer; the header has `error` if the file is rejected.

        A file at which the program ends counts as rejected, and the program is started again.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{kind} {path}\n".encode())
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            self.start()
            return {"error": f"the decoder ended with status {status}"}, b""
        head = json.loads(line)
        return head, self.process.stdout.read(head.get("bytes", 0))


def levels(ours: np.ndarray, theirs: np.ndarray) -> int | None:
    """Returns the largest difference in levels; None if the sizes differ."""
    if ours.shape != theirs.shape:
        return None
    return int(np.abs(ours.astype(np.int16) - theirs.astype(np.int16)).max(initial=0))


def decibels(ours: np.ndarray, theirs: np.ndarray, delay: int) -> float:
    """Returns the RMS difference in dB of full scale in the channel with the largest one.

    The samples have shape [channels, frames]. `ours` is `delay` samples late; samples that only one of the two has are
    ignored.
    """
    ours, theirs = ours[:, max(delay, 0) :], theirs[:, max(-delay, 0) :]
    common = min(ours.shape[1], theirs.shape[1])
    if common == 0:
        return 0.0
    difference = ours[:, :common].astype(np.float64) - theirs[:, :common]
    return 20 * float(np.log10(max(np.sqrt(np.mean(np.square(difference), axis=1)).max(), 1e-12)))


def compare_images(head: dict[str, Any], data: bytes, expected: reference.Decoded) -> dict[str, Any]:
    """Returns the difference between feedstock's image and the reference's."""
    ours = np.frombuffer(data, dtype=np.uint8).reshape(head["height"], head["width"], 3)
    difference = levels(ours, expected.values)
    differs = difference is None or difference > MAX_LEVELS
    return {"levels": difference, "sizes": [ours.shape[:2], expected.values.shape[:2]], "differs": differs}


def compare_audio(
    head: dict[str, Any], data: bytes, expected: reference.Decoded, padding: int
) -> dict[str, Any]:
    """Returns the difference between feedstock's audio clip and the reference's, per channel, from the first sample on.

    Up to `padding` samples of the reference's end may be missing. If the numbers of samples differ otherwise, the
    result also has the level for audio clips that are aligned at their ends.
    """
    ours = np.frombuffer(data, dtype="<f4").reshape(head["channels"], -1)
    result = {
        "frames": [ours.shape[1], expected.values.shape[1]],
        "channels": [ours.shape[0], expected.values.shape[0]],
        "sample_rates": [head["sample_rate"], expected.sample_rate],
    }
    if len(ours) != len(expected.values) or head["sample_rate"] != expected.sample_rate:
        return {**result, "differs": True}
    longer = ours.shape[1] - expected.values.shape[1]
    level = decibels(ours, expected.values, 0)
    differs = level > MAX_DECIBELS or not -padding <= longer <= 0
    result["decibels"] = round(level, 1)
    if differs and longer != 0:
        result["decibels_aligned_at_the_end"] = round(decibels(ours, expected.values, longer), 1)
    return {**result, "differs": differs}


def judge(file_format: str, path: Path, feedstock: Feedstock) -> dict[str, Any]:
    """Decodes one file with both decoders and returns its line of the result."""
    kind = collect.KINDS[file_format]
    head, data = feedstock.decode(kind, path)
    try:
        expected = reference.image(path) if kind == "image" else reference.audio(path, file_format)
    except reference.RefusedError as error:
        verdict = "both_refuse" if "error" in head else "reference_refuses"
        return {"verdict": verdict, "error": head.get("error"), "reference_error": str(error)}
    if "error" in head:
        is_unsupported = any(text in head["error"] for text in UNSUPPORTED)
        verdict = "unsupported" if is_unsupported else "refused"
        return {"verdict": verdict, "error": head["error"], "reference": expected.decoder}
    if kind == "image":
        result = compare_images(head, data, expected)
    else:
        padding = ALLOWED_PADDING.get(file_format, 0)
        result = compare_audio(head, data, expected, padding)
        if result["differs"] and expected.decoder == "soundfile":
            # The references differ from each other.
            with contextlib.suppress(reference.RefusedError):
                other = reference.ffmpeg(path, "")
                second = compare_audio(head, data, other, padding)
                if not second["differs"]:
                    expected = other
                    result = {**second, "soundfile_decibels": result.get("decibels")}
    seconds = {"seconds": round(head["seconds"], 5), "reference_seconds": round(expected.seconds, 5)}
    slower = head["seconds"] > max(SLOWER * expected.seconds, LEAST_SECONDS)
    verdict = "differs" if result.pop("differs") else "same"
    warned = {"warnings": head["warnings"]} if head.get("warnings") else {}
    return {
        "verdict": verdict,
        "slower": slower,
        "reference": expected.decoder,
        **warned,
        **seconds,
        **result,
    }


def survey(
    packages: list[collect.Package], cache: Path, program: Path, jobs: int, max_seconds: float | None
) -> tuple[list[dict[str, Any]], int]:
    """Judges every collected file without a result of this build; returns all results and the number of files.

    `jobs` files are decoded at once. After `max_seconds` no further file is begun. The order mixes the packages, so
    that an unfinished survey is a sample.
    """
    build = hashlib.sha256(program.read_bytes()).hexdigest()[:16]
    stored = cache / f"results-{build}.jsonl"
    lines = stored.read_text().splitlines() if stored.exists() else []
    results = {result["file"]: result for result in map(json.loads, lines)}
    files = [
        (str(path.relative_to(cache)), file_format, path)
        for package in packages
        for file_format, path in collect.files_of(package, cache)
    ]
    missing = [file for file in files if file[0] not in results]
    random.Random(0).shuffle(missing)
    deadline = time.monotonic() + max_seconds if max_seconds is not None else float("inf")
    decoder = threading.local()

    def judge_one(file: tuple[str, str, Path]) -> dict[str, Any] | None:
        if time.monotonic() > deadline:
            return None
        if not hasattr(decoder, "feedstock"):
            decoder.feedstock = Feedstock(program)
        name, file_format, path = file
        return {"file": name, "format": file_format, **judge(file_format, path, decoder.feedstock)}

    with stored.open("a") as out, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(judge_one, missing):
            if result is not None:
                results[result["file"]] = result
                out.write(json.dumps(result) + "\n")
                out.flush()
    return [results[name] for name, _, _ in files if name in results], len(files)


def needs_attention(result: dict[str, Any], explained: dict[str, str]) -> bool:
    """Returns whether feedstock's result differs from the reference's without a known reason."""
    return result["verdict"] in ("refused", "differs") and result["file"] not in explained


def report(results: list[dict[str, Any]], explained: dict[str, str]) -> bool:
    """Prints the counts and the files that need attention; returns whether there are none."""
    for file_format in collect.KINDS:
        of_format = [result for result in results if result["format"] == file_format]
        counts = Counter(result["verdict"] for result in of_format)
        slower = sum(bool(result.get("slower")) for result in of_format)
        text = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        print(f"{file_format}: {len(of_format)} files: {text or 'none'}; {slower} slower")
    attention = [result for result in results if needs_attention(result, explained)]
    for result in attention:
        shown = {key: value for key, value in result.items() if key not in ("file", "format", "verdict")}
        print(f"{result['verdict']} {result['file']}: {json.dumps(shown)}")
    return not attention


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path(__file__)
    parser.add_argument("--cache", type=Path, required=True, help="folder of collected files and results")
    parser.add_argument("--program", type=Path, required=True, help="the built example decode_files")
    parser.add_argument("--packages", type=Path, default=here.with_name("packages.txt"))
    parser.add_argument("--explained", type=Path, default=here.with_name("explained.json"))
    parser.add_argument("--only", help="survey only packages whose name contains this text")
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    parser.add_argument("--page", type=Path, help="also write the results as a page in Markdown to this file")
    parser.add_argument(
        "--times",
        action="store_true",
        help="show times on the page; for a program that was built with --release",
    )
    parser.add_argument("--jobs", type=int, default=1, help="files that are decoded at once (default 1)")
    parser.add_argument(
        "--max-seconds", type=float, help="begin no file after this time; the next run resumes"
    )
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    packages = [
        package for package in collect.read_list(options.packages) if (options.only or "") in package.name
    ]
    for package in packages:
        collect.fetch(package, options.cache)
    results, files = survey(packages, options.cache, options.program, options.jobs, options.max_seconds)
    explained = json.loads(options.explained.read_text())
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.page:
        options.page.write_text(page.render(results, files, packages, explained, are_timed=options.times))
    return 0 if report(results, explained) else 1


if __name__ == "__main__":
    sys.exit(main())
