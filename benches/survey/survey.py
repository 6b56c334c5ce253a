"""Decodes each collected file with feedstock and with the reference, and reports what is refused or differs.

Results are appended to a file as they come, so an interrupted run goes on where it stopped. They belong to one build
of the decoder: another build starts anew. Exit status: 0 where nothing is refused and nothing differs, else 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import collect
import numpy as np
import reference

MAX_LEVELS = 1
MAX_DECIBELS = -80.0
# By how many samples feedstock's clip may begin before the reference's, for each format: codecs delay their output, and
# decoders differ in whether they cut the delay off where the container does not state it. All others must be equal.
ALLOWED_DELAYS: dict[str, tuple[int, ...]] = {}
SLOWER = 1.5
LEAST_SECONDS = 0.005


class Feedstock:
    """The program `decode_files`, which answers one file at a time."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def decode(self, kind: str, path: Path) -> tuple[dict[str, Any], bytes]:
        """Returns the head and the data of the answer; the head has `error` where the file is refused.

        A file at which the program ends counts as refused, and the program is started again.
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
    """Returns the largest difference in levels; None where the sizes differ."""
    if ours.shape != theirs.shape:
        return None
    return int(np.abs(ours.astype(np.int16) - theirs.astype(np.int16)).max(initial=0))


def decibels(ours: np.ndarray, theirs: np.ndarray, delay: int) -> float:
    """Returns the RMS difference in dB of full scale of the channel where it is largest.

    The samples have shape [channels, frames]. `ours` is `delay` samples late; what only one of the two has is left out.
    """
    ours, theirs = ours[:, max(delay, 0) :], theirs[:, max(-delay, 0) :]
    common = min(ours.shape[1], theirs.shape[1])
    if common == 0:
        return 0.0
    difference = ours[:, :common].astype(np.float64) - theirs[:, :common]
    return 20 * float(np.log10(max(np.sqrt(np.mean(np.square(difference), axis=1)).max(), 1e-12)))


def compare_images(head: dict[str, Any], data: bytes, expected: reference.Decoded) -> dict[str, Any]:
    """Returns how far feedstock's image is from the reference's."""
    ours = np.frombuffer(data, dtype=np.uint8).reshape(head["height"], head["width"], 3)
    difference = levels(ours, expected.values)
    differs = difference is None or difference > MAX_LEVELS
    return {"levels": difference, "sizes": [ours.shape[:2], expected.values.shape[:2]], "differs": differs}


def compare_audio(
    head: dict[str, Any], data: bytes, expected: reference.Decoded, allowed: tuple[int, ...]
) -> dict[str, Any]:
    """Returns how far feedstock's clip is from the reference's, channel by channel.

    The clips are aligned by the reference's number of samples: if feedstock's has more, these come before its start.
    """
    ours = np.frombuffer(data, dtype="<f4").reshape(head["channels"], -1)
    result = {
        "frames": [ours.shape[1], expected.values.shape[1]],
        "channels": [ours.shape[0], expected.values.shape[0]],
        "sample_rates": [head["sample_rate"], expected.sample_rate],
    }
    if len(ours) != len(expected.values) or head["sample_rate"] != expected.sample_rate:
        return {**result, "differs": True}
    delay = ours.shape[1] - expected.values.shape[1]
    level = decibels(ours, expected.values, delay)
    differs = level > MAX_DECIBELS or delay not in (0, *allowed)
    if differs and delay != 0:
        # Whether only the end differs.
        result["decibels_without_delay"] = round(decibels(ours, expected.values, 0), 1)
    return {"decibels": round(level, 1), "delay": delay, **result, "differs": differs}


def judge(file_format: str, path: Path, feedstock: Feedstock) -> dict[str, Any]:
    """Decodes one file with both decoders and returns its line of the result."""
    kind = collect.KINDS[file_format]
    head, data = feedstock.decode(kind, path)
    try:
        expected = getattr(reference, kind)(path)
    except reference.RefusedError as error:
        verdict = "both_refuse" if "error" in head else "reference_refuses"
        return {"verdict": verdict, "error": head.get("error"), "reference_error": str(error)}
    if "error" in head:
        return {"verdict": "refused", "error": head["error"], "reference": expected.decoder}
    if kind == "image":
        result = compare_images(head, data, expected)
    else:
        result = compare_audio(head, data, expected, ALLOWED_DELAYS.get(file_format, ()))
    seconds = {"seconds": round(head["seconds"], 5), "reference_seconds": round(expected.seconds, 5)}
    slower = head["seconds"] > max(SLOWER * expected.seconds, LEAST_SECONDS)
    verdict = "differs" if result.pop("differs") else "same"
    return {"verdict": verdict, "slower": slower, "reference": expected.decoder, **seconds, **result}


def survey(packages: list[collect.Package], cache: Path, program: Path) -> list[dict[str, Any]]:
    """Judges every collected file that has no result of this build yet; returns all results."""
    build = hashlib.sha256(program.read_bytes()).hexdigest()[:16]
    stored = cache / f"results-{build}.jsonl"
    lines = stored.read_text().splitlines() if stored.exists() else []
    results = {result["file"]: result for result in map(json.loads, lines)}
    feedstock = Feedstock(program)
    with stored.open("a") as out:
        for package in packages:
            for file_format, path in collect.files_of(package, cache):
                name = str(path.relative_to(cache))
                if name in results:
                    continue
                results[name] = {"file": name, "format": file_format, **judge(file_format, path, feedstock)}
                out.write(json.dumps(results[name]) + "\n")
                out.flush()
    folders = {package.folder for package in packages}
    return [result for name, result in results.items() if name.split("/")[0] in folders]


def report(results: list[dict[str, Any]]) -> bool:
    """Prints the counts and the files that need attention; returns whether there are none."""
    for kind in ("image", "audio"):
        counts = Counter(result["verdict"] for result in results if result["kind"] == kind)
        slower = sum(bool(result.get("slower")) for result in results if result["kind"] == kind)
        text = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        print(f"{kind}: {sum(counts.values())} files: {text or 'none'}; {slower} slower")
    for result in results:
        if result["verdict"] in ("refused", "differs"):
            shown = {key: value for key, value in result.items() if key not in ("file", "kind", "verdict")}
            print(f"{result['verdict']} {result['file']}: {json.dumps(shown)}")
    return not any(result["verdict"] in ("refused", "differs") for result in results)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True, help="folder of collected files and results")
    parser.add_argument("--program", type=Path, required=True, help="the built example decode_files")
    parser.add_argument("--packages", type=Path, default=Path(__file__).with_name("packages.txt"))
    parser.add_argument("--only", help="survey only packages whose name contains this text")
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    packages = [
        package for package in collect.read_list(options.packages) if (options.only or "") in package.name
    ]
    for package in packages:
        collect.fetch(package, options.cache)
    results = survey(packages, options.cache, options.program)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if report(results) else 1


if __name__ == "__main__":
    sys.exit(main())
