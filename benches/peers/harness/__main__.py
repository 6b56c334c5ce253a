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
feedstock beside what people use: the same pictures and clips, the same outputs, the same cores. Makes the data,
installs each peer into an environment of its own, checks that outputs agree, finds how many workers suit each peer
best, runs all of them in turns, and writes results.json, table.md and plots (SVG).
"""

EXAMPLES = """\
examples:
  benches/peers/run --quick --peers torch_pil,dali          a first look, some minutes
  benches/peers/run                                         everything: hours
  benches/peers/run --jobs pictures-train --storage local   one job
  benches/peers/run --parts memory,resume                   some of what is measured
  benches/peers/run --at-most 4                             starts nothing new after 4 minutes; the same command goes on
  benches/peers/run --parts report                          table and plots anew from results.json
  benches/peers/run --parts report --results docs/benchmarks/results.json --page docs/benchmarks.md
                                                            a page with its plots beside it, from any results file

Runs that results.json holds are not repeated, failed ones neither (--again and --again failed do). The exit code is 3
where --at-most left something to do.
Goals are judged where a calibration and a passed check stand behind every figure and three rounds behind every one that
may be the best, feedstock was built in Cargo's release profile, and no peer was left out.

parts:
  install    environments; what cannot be installed is reported with its error
  prepare    each peer's own format, from the same bytes; its time is reported (what runs contenders prepares, too)
  check      outputs of 128 pictures (64 clips) of each contender beside Pillow's (torchaudio's), sample by sample;
             of random crops, means, standard deviations and coarse grids of 2,048
  calibrate  1/2, 1 and 2 workers a core in short runs: the best are kept, for each storage, of pictures and of speech
  rates      samples a second in the first epoch, CPU time, first batch, threads and processes: in rounds
  memory     at rest, running, and while the consumer pauses after 20 batches: in rounds
  resume     from exec to the right next batch, with a state saved in the middle of an epoch: in rounds
  ceilings   bare codecs on one core (cargo bench), and this package's chain without storage and batches
  report     table.md and plots

The package is built in Cargo's release profile, anew when its sources have changed. FEEDSTOCK_PROFILE=dev builds it as
the tests do: soon there, for a first look. A file of results holds one build (sources, profile, harness) alone, and of
a job, storage and part the runs of one machine; a contender whose program has changed is measured anew.

Runs as root hold contenders in a control group, whose CPU time is exact; else the process tree is summed. The machine
should have nothing else to do. The S3 server (the tests' own) runs on the same cores and costs several CPU-seconds
per GB, for all alike: compare CPU time, which is the contender's alone, before rates.
"""


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def chosen(text: str, known: tuple[str, ...], what: str) -> list[str]:
    found = words(text)
    unknown = [word for word in found if word not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is no {what}; there are {', '.join(known)}")
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
        help="local, s3",
    )
    add(
        "--peers",
        type=lambda text: chosen(text, plan.PEERS, "peer"),
        help=f"beside feedstock: {', '.join(peer for peer in plan.PEERS if peer not in goals.ALSO_OURS)}",
    )
    add(
        "--parts",
        type=lambda text: chosen(text, bench.PARTS, "part"),
        default=list(bench.PARTS),
        help=", ".join(bench.PARTS),
    )
    add(
        "--rounds", type=int, default=3, help="of rates, memory and resume, each in a random order; default 3"
    )
    add(
        "--calibrations",
        type=int,
        default=1,
        help="short runs of each number of workers, whose median counts; default 1",
    )
    add("--seed", type=int, default=7, help="of those orders; default 7")
    add(
        "--samples",
        type=int,
        default=6000,
        help="pictures, and as many clips, 72 %% of which an epoch has; default 6000",
    )
    add(
        "--cores", type=int, default=len(os.sched_getaffinity(0)), help="that contenders may use; default all"
    )
    add("--quick", action="store_true", help="one round on 1500 samples; no goal is judged")
    add(
        "--again",
        nargs="?",
        const="all",
        choices=["all", "failed"],
        help="repeat what results.json holds, or what failed of it; cut off by --at-most, the same command goes on",
    )
    add(
        "--at-most", type=float, metavar="MINUTES", help="start nothing new after so long; run again to go on"
    )
    add(
        "--out",
        type=Path,
        help="folder of results.json, table.md and plots; default peers/results in the cache folder",
    )
    add("--results", type=Path, help="with --parts report: this file; table and plots go to --out alone")
    add(
        "--page",
        type=Path,
        help="write this page of documentation from the results, too, with plots beside it",
    )
    add("--cache", type=Path, required=True, help=argparse.SUPPRESS)
    add("--wheel", type=Path, help=argparse.SUPPRESS)
    add("--s3-server", type=Path, help=argparse.SUPPRESS)
    return made


def report(results: Results, out: Path | None, page_at: Path | None) -> None:
    """The summary, and as files table and plots into ``out`` and the page with its own."""
    if not results.content["runs"]:
        raise Unmixable(
            f"{results.path} holds no runs: run the benchmark first, or name a file with --results"
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
            "benches/peers/run: --results goes with --parts report; --out names where runs go",
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
        print("not finished: the same command goes on", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
