"""Checks that every way into a trainer overlaps copies with the model, with 1 GPU and with all GPUs of this machine:

    FEEDSTOCK_RELEASE=1 scripts/python benches/gpu/adapters.py                       # 1 GPU, then all: some minutes
    FEEDSTOCK_RELEASE=1 scripts/python benches/gpu/adapters.py --gpus 8 --adapters lightning ray
    scripts/python benches/gpu/adapters.py --stand-in                                # without GPUs: measures nothing

Each adapter trains in one process per GPU, with matrix products in place of a model. By the GPU's own clocks:

- every batch is copied once, from page-locked memory: the framework copies none again
- the copies run while the model's kernels run

A table is printed, and stored in benches/gpu/results-adapters-<gpu>-<n>gpus.json. The exit code is 1 if a goal is
missed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

#: Adapters, and the package that each needs.
ADAPTERS = {
    "torch": "torch",
    "adaptive": "scipy",
    "lightning": "lightning",
    "accelerate": "accelerate",
    "trainer": "transformers",
    "ray": "ray",
    "ray-adaptive": "ray",
    "adaptdl": "adaptdl",
}

OVERLAP_GOAL = 0.9  # the share of the copies' time in which the model's kernels also run


def main() -> None:
    options = arguments()
    if not options.stand_in and not torch.cuda.is_available():
        print("no GPU here: nothing was measured (torch.cuda.is_available() is False)")
        sys.exit(2)
    counts = [options.gpus] if options.gpus else sorted({1, torch.cuda.device_count() or 2})
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="feedstock-adapters-") as folder:
        os.environ["FEEDSTOCK_CACHE"] = f"{folder}/cache"
        data = options.data or synth(Path(folder), options.samples)
        for gpus in counts:
            for adapter in options.adapters:
                rows.append(one(adapter, gpus, data, options))
                print(described(rows[-1]), flush=True)
    if not options.stand_in:
        keep(rows)
    sys.exit(0 if all(row["passed"] for row in rows) else 1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Checks the overlap of copies through every adapter.")
    parser.add_argument("--adapters", nargs="+", choices=list(ADAPTERS), default=list(ADAPTERS))
    parser.add_argument("--gpus", type=int, help="processes, one per GPU; default: 1, then all GPUs")
    parser.add_argument("--batch", type=int, default=64, help="rows per GPU")
    parser.add_argument("--size", type=int, default=224, help="pixels of an image's side")
    parser.add_argument("--steps", type=int, default=30, help="measured steps, after 10 others")
    parser.add_argument("--samples", type=int, default=8000, help="number of sample images (500 × 375 px)")
    parser.add_argument("--data", help="an existing data set of JPEGs with labels, instead of sample images")
    parser.add_argument(
        "--stand-in", action="store_true", help="run the same programs on CPUs, without measurements"
    )
    return parser.parse_args()


def synth(folder: Path, samples: int) -> str:
    words = [sys.executable, "-m", "feedstock", "synth", "imagenet", f"{folder}/data"]
    subprocess.run([*words, "--samples", str(samples), "--seed", "1", "--quiet"], check=True)
    return f"{folder}/data"


def one(adapter: str, gpus: int, data: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs an adapter in `gpus` processes, and returns the worst of their measurements."""
    row: dict[str, Any] = {"adapter": adapter, "gpus": gpus, "passed": True}
    if importlib.util.find_spec(ADAPTERS[adapter]) is None:
        return {**row, "note": f"skipped: {ADAPTERS[adapter]} is not installed"}
    with tempfile.TemporaryDirectory(prefix="feedstock-adapter-") as folder:
        job = {"adapter": adapter, "gpus": gpus, "data": data, "folder": folder, "stand_in": options.stand_in}
        job |= {"batch": options.batch, "size": options.size, "steps": options.steps}
        program = str(Path(__file__).with_name("adapter_ranks.py"))
        command = [sys.executable, program, json.dumps(job)]
        if not adapter.startswith("ray"):  # Ray starts the processes
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command = [*launcher, f"--nproc-per-node={gpus}", *command[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        ranks = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank-*.json"))]
    if done.returncode != 0 or len(ranks) != gpus:
        lines = (done.stdout + done.stderr).strip().splitlines()
        return {**row, "passed": False, "note": "failed:\n    " + "\n    ".join(lines[-12:])}
    if options.stand_in:
        return {**row, "note": f"{min(rank['steps'] for rank in ranks)} steps on each rank"}
    row |= {
        "overlap": min(rank["overlap"] for rank in ranks),
        "copies_per_step": max(rank["copies"] / rank["steps"] for rank in ranks),
        "pageable": sum(rank["pageable"] for rank in ranks),
        "moved_again": sum(rank["moved_again"] for rank in ranks),
        "step_ms": max(rank["step_ms"] for rank in ranks),
        "compute_ms": max(rank["compute_ms"] for rank in ranks),
    }
    # At the edges of the measurement, up to `depth` batches are copied ahead.
    once = row["copies_per_step"] <= 1.2 and row["moved_again"] == 0 and row["pageable"] == 0
    row["passed"] = once and row["overlap"] >= OVERLAP_GOAL
    return row


def described(row: dict[str, Any]) -> str:
    head = f"{row['adapter']:14}{row['gpus']:3} GPUs  "
    if "note" in row:
        return head + row["note"]
    return head + (
        f"{row['overlap']:6.1%} of copies overlap (goal ≥ {OVERLAP_GOAL:.0%}), {row['copies_per_step']:.2f} copies a "
        f"step, {row['pageable']} pageable, {row['moved_again']} moved again, step {row['step_ms']:.1f} ms of which "
        f"{row['compute_ms']:.1f} compute{'' if row['passed'] else '  MISSED'}"
    )


def keep(rows: list[dict[str, Any]]) -> None:
    machine = f"{torch.cuda.get_device_name(0)}-{torch.cuda.device_count()}gpus".lower().replace(" ", "-")
    path = Path(__file__).with_name(f"results-adapters-{machine}.json")
    path.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
