"""The command: see ``run --help``."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from harness import bench, goals, page, plan, plots, table
from harness.alone import Running, alone
from harness.stored import Results, Unmixable

DESCRIPTION = """\
Compares feedstock with other data loaders: the same images and audio clips, the same outputs, the same cores. Makes the
data, installs each peer in a separate environment, checks that outputs agree, finds the best number of workers for each
peer, runs all of them in turns, and writes results.json, table.md and plots (SVG).
"""

EXAMPLES = """\
examples:
   benches/peers/run --quick --peers torch_pil,dali          a first look; takes some minutes
   benches/peers/run                                         everything; takes hours
  benches/peers/run --jobs pictures-train --storage local   one job
   benches/peers/run --parts memory,resume                   selected measurements
   benches/peers/run --at-most 4                             starts nothing new after 4 minutes; repeat it to resume
   benches/peers/run --parts report                          new table and plots from results.json
  benches/peers/run --parts report --results docs/benchmarks/results.json --page docs/benchmarks.md
                                                            a page and its plots from any results file

Runs that results.json holds are not repeated, including failed ones; --again and --again failed repeat them. The exit
code is 3 if --at-most left something to do.
A goal is judged only if every figure has a calibration and a passed check, every figure that may be the best has three
rounds, feedstock was built in Cargo's release profile, and no peer was left out.

parts:
   install    create environments; a peer that cannot be installed is reported with its error
   prepare    write each peer's own format, from the same bytes, and report the time (also done before any run)
   check      compare outputs of 128 images (64 audio clips) of each contender with Pillow's (torchaudio's) by sample;
             for random crops, compare means, standard deviations and coarse grids of 2,048 crops
   calibrate  try 1/2, 1 and 2 workers per core in short runs, and keep the best for each storage, for images and
             speech; for s3-realistic 1, 2, 4, 8 and 16 per core, until more of them deliver less
   rates      samples per second in the first epoch, CPU time, first batch, threads and processes; in rounds
   steps      s3-realistic only: share of the time that a consumer waits which sleeps 50 ms after each batch of images;
             in rounds
   memory     at rest, running, and while the consumer pauses after 20 batches; in rounds
   resume     time from exec to the right next batch, with a state saved in the middle of an epoch; in rounds
   ceilings   bare codecs on one core (cargo bench), and feedstock's chain without storage and batches
  report     table.md and plots

The package is built in Cargo's release profile, and built again when its sources have changed. FEEDSTOCK_PROFILE=dev
builds it as the tests do, which is faster, for a first look. A file of results holds a single build (sources, profile,
harness). Its runs of one job, storage and part are of one machine. A contender whose program has changed is measured
again.

storages:
   local         files, in the page cache
   s3            the tests' S3 server, which answers at once
   s3-realistic  the same server with the latency, rates and failures of a real store (--profile s3)

Runs as root hold contenders in a control group, whose CPU time is exact; otherwise the process tree is summed. No other
work should run on the machine. The S3 server (that of the tests) runs on the same cores and costs several CPU-seconds
per GB, equally for all: compare CPU time, which excludes the server, before rates.
"""


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def chosen(text: str, known: tuple[str, ...], what: str) -> list[str]:
    found = words(text)
    unknown = [word for word in found if word not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{what} must be one of {', '.join(known)}; got {unknown[0]}")
    return found


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="benches/peers/run",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "--jobs",
        type=lambda text: chosen(text, plan.JOBS, "job"),
        default=list(plan.JOBS),
        help=", ".join(plan.JOBS),
    )
    add(
        "--storage",
        type=lambda text: chosen(text, plan.STORAGES, "storage"),
        default=list(plan.STORAGES),
        help=", ".join(plan.STORAGES),
    )
    add(
        "--peers",
        type=lambda text: chosen(text, plan.PEERS, "peer"),
        help=f"in addition to feedstock: {', '.join(peer for peer in plan.PEERS if peer not in goals.ALSO_OURS)}",
    )
    add(
        "--parts",
        type=lambda text: chosen(text, bench.PARTS, "part"),
        default=list(bench.PARTS),
        help=", ".join(bench.PARTS),
    )
    add("--rounds", type=int, default=3, help="rounds of rates, steps, memory and resume; default 3")
    add(
        "--calibrations",
        type=int,
        default=1,
        help="short runs per number of workers; the median counts; default 1",
    )
    add("--seed", type=int, default=7, help="seed of the order of runs in a round; default 7")
    add(
        "--samples",
        type=int,
        default=6000,
        help="images, and the same number of audio clips, of which an epoch has 72 %%; default 6000",
    )
    add(
        "--cores",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="CPUs that contenders may use; default all",
    )
    add("--quick", action="store_true", help="one round on 1500 samples; no goal is judged")
    add(
        "--again",
        nargs="?",
        const="all",
        choices=["all", "failed"],
        help="repeat all runs of results.json, or the failed ones; after --at-most, repeat the command to resume",
    )
    add(
        "--at-most",
        type=float,
        metavar="MINUTES",
        help="start nothing new after this time; repeat the command to resume",
    )
    add(
        "--out",
        type=Path,
        help="folder of results.json, table.md and plots; default: peers/results in the cache folder",
    )
    add(
        "--results",
        type=Path,
        help="with --parts report: read this file; table and plots are written to --out only",
    )
    add(
        "--page",
        type=Path,
        help="also write this documentation page from the results, with its plots in a folder next to it",
    )
    add("--cache", type=Path, required=True, help=argparse.SUPPRESS)
    add("--wheel", type=Path, help=argparse.SUPPRESS)
    add("--s3-server", type=Path, help=argparse.SUPPRESS)
    return made


def report(results: Results, out: Path | None, page_at: Path | None) -> None:
    """Prints the summary, and writes table and plots into ``out`` and the page with its plots."""
    if not results.content["runs"]:
        raise Unmixable(
            f"{results.path} holds no runs: run the benchmark first, or set --results to another file"
        )
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "table.md").write_text(table.markdown(results))
        for path in [*plots.draw(results, out).values(), out / "table.md"]:
            print(f"wrote {path}")
    print(f"\n{table.summary(results)}")
    if page_at:
        page.write(results, page_at)
        print(f"wrote {page_at}")


def main() -> int:
    options = parser().parse_args()
    if options.quick:
        options.rounds, options.samples = 1, min(options.samples, 1500)
    if options.peers is None:
        options.peers = list(plan.PEERS)
    options.peers = list(dict.fromkeys([*goals.ALSO_OURS, *options.peers]))
    if options.out is None and options.results is None:
        options.out = options.cache / "results"
    options.out = options.out and options.out.absolute()
    only_report = set(options.parts) == {"report"}
    if options.results and not only_report:
        print(
            "benches/peers/run: --results requires --parts report; set --out to choose where runs are stored",
            file=sys.stderr,
        )
        return 2
    complete = True
    try:
        with ExitStack() as held:
            if not only_report:
                held.enter_context(alone(options.cache))
            results = Results(options.results or options.out / "results.json")
            if not only_report:
                complete = bench.Bench(options, results).run()
        if "report" in options.parts and (complete or results.content["runs"]):
            report(results, options.out, options.page)
    except (Unmixable, Running) as error:
        print(f"benches/peers/run: {error}", file=sys.stderr)
        return 2
    if not complete:
        print("not finished: repeat the command to resume", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
