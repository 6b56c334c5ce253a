"""Measures a loader's start: the time from `iter(loader)` to the first batch.

With several ranks, loaders with and without the ranks' comparison of their configurations take turns. The ranks are
processes of this machine in a group of torch.distributed (gloo over a TCPStore), and a barrier lets them start at the
same time. A single process has no other rank to compare with.

scripts/python benches/python/start.py                    # 1 and 2 ranks
scripts/python benches/python/start.py --ranks 2 4 8 --rounds 40
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed

import feedstock as fs


def first_batch(
    pipeline: fs.Pipeline, rank: int, ranks: int, is_compared: bool, wait: Callable[[], object]
) -> float:
    """Returns the seconds from `iter(loader)` to the first batch."""
    with pipeline.loader(rank, ranks) as loader:
        if not is_compared:
            loader._agreement = None
        wait()
        begun = time.perf_counter()
        next(iter(loader))
        return time.perf_counter() - begun


def run_rank(folder: Path, rank: int, ranks: int, port: int, rounds: int) -> None:
    """Prints the times of one rank as JSON: with the comparison, and without it."""
    pipeline = (
        fs.Dataset(folder)
        .map("image", fs.decode_image(), fs.random_resized_crop(64))
        .shuffle(seed=0)
        .batch(16)
        .options(threads=1)
    )
    wait: Callable[[], object] = int  # a single rank does not wait
    if ranks > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
        )
        wait = torch.distributed.barrier
    first_batch(pipeline, rank, ranks, False, wait)  # imports, threads, files in the page cache
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(rounds):
        for name, taken in times.items():
            taken.append(first_batch(pipeline, rank, ranks, name == "with", wait))
    wait()
    print(json.dumps(times))
    if ranks > 1:
        torch.distributed.destroy_process_group()


def measure(folder: Path, ranks: int, rounds: int) -> dict[str, list[float]]:
    """Returns the times of all ranks of one group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, __file__, "--folder", str(folder), "--port", str(port), "--rounds", str(rounds)]
    processes = [
        subprocess.Popen(
            [*words, "--ranks", str(ranks), "--rank", str(rank)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        raise SystemExit("a rank failed; its error is above")
    times = [json.loads(output) for output in outputs]
    return {name: [seconds for rank in times for seconds in rank[name]] for name in ("with", "without")}


def shown(times: list[float]) -> str:
    ordered = sorted(times)
    return f"median {statistics.median(times) * 1e3:.1f} ms, 90 % below {ordered[len(ordered) * 9 // 10] * 1e3:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[1, 2], help="number of ranks in a group (default 1 and 2)"
    )
    parser.add_argument(
        "--rounds", type=int, default=20, help="loaders of each kind in each rank (default 20)"
    )
    for name, kind in (("--folder", Path), ("--rank", int), ("--port", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)  # for the processes that this one starts
    options = parser.parse_args()
    if options.rank is not None:
        run_rank(options.folder, options.rank, options.ranks[0], options.port, options.rounds)
        return
    with tempfile.TemporaryDirectory(prefix="feedstock-bench-") as folder:
        os.environ["FEEDSTOCK_CACHE"] = f"{folder}/cache"
        pictures = Path(folder) / "images"
        words = ["synth", "imagenet", str(pictures), "--samples", "400", "--seed", "1", "--quiet"]
        subprocess.run([sys.executable, "-m", "feedstock", *words], check=True)
        for ranks in options.ranks:
            times = measure(pictures, ranks, options.rounds)
            if ranks == 1:
                print(f"start, 1 rank: {shown(times['with'] + times['without'])}")
                continue
            more = statistics.median(times["with"]) - statistics.median(times["without"])
            print(f"start, {ranks} ranks, compared: {shown(times['with'])}")
            print(f"start, {ranks} ranks, not compared: {shown(times['without'])}")
            print(f"start, {ranks} ranks: the comparison adds {more * 1e3:+.1f} ms to the median")


if __name__ == "__main__":
    main()
