"""Writes ``docs/benchmarks.md`` from the results, with the plots and the results in a folder next to it."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

from harness import goals, method, plan, plots, table
from harness.documentation import linked
from harness.stored import Results

HEAD = """\
# Benchmarks: feedstock and other data loaders

This page compares feedstock with data loaders that teams use: the same images and audio clips, the same outputs, the
same cores, each as its own documentation recommends. {verdict}

All figures come from [{results}]({results}). To measure again (which installs everything, and resumes if it was
stopped), and to make this page from a file of results:

```sh
benches/peers/run                # everything{took}; see --help for parts
benches/peers/run --parts report --results PATH/TO/results.json --page PATH/TO/{name}
```
"""


def write(results: Results, path: Path) -> None:
    """Writes the page, and next to it a folder of its name with plots and results. Links are relative."""
    beside = path.parent / path.stem
    drawn = plots.draw(results, beside)
    kept = beside / "results.json"
    if not kept.is_file() or not kept.samefile(results.path):
        shutil.copyfile(results.path, kept)
    found = goals.goals(results)
    parts = [
        HEAD.format(
            results=f"{path.stem}/results.json", name=path.name, verdict=verdict(found), took=took(results)
        ),
        f"{table.fastest(results)}\n{table.jobs(results)}\n{_machine(results)}",
        "## Limits of these figures\n\n" + bullets(method.limits(results)),
        f"## Goals and measurements\n\n{table.asked(found)}",
        *_missed(found),
        f"## Rates\n\n{method.COLUMNS}",
    ]
    for job, storage, text in table.tables(results):
        title = f"{job}, {storage}"
        parts.append(f"### {title}\n")
        parts.append(f"![{title}]({path.stem}/{drawn[job, storage].name})\n")
        parts.append(text)
    parts += [f"## {title}\n\n{text}" for title, text in table.others(results)]
    parts.append("## How it was measured\n\n" + bullets(method.sentences(results)))
    parts.append(_configurations(results))
    path.write_text("\n".join(parts))


def bullets(lines: Iterator[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


def verdict(found: list[goals.Goal]) -> str:
    judged = [goal for goal in found if goal.reached is not None]
    reached, close = sum(goal.reached is True for goal in judged), sum(goal.close for goal in judged)
    said = f"Of {len(judged)} goals, {reached} are reached"
    if close:
        said += f" ({close} of the verdicts are within the rounds' spread)"
    return f"{said}; {len(found) - len(judged)} are not judged." if len(found) > len(judged) else f"{said}."


def took(results: Results) -> str:
    """Returns how long the runs took."""
    seconds = sum(float(run.get("took_s", 0.0)) for run in results.content["runs"])
    return f": {seconds / 3600:.1f} hours of runs here, and more to prepare them" if seconds else ""


def _missed(found: list[goals.Goal]) -> Iterator[str]:
    """Yields why goals are missed."""
    told = []
    for goal in (goal for goal in found if goal.reached is False):
        why = next((why for part, why in method.REASONS if part in goal.what), "not known.")
        told.append(f"{goal.what}, {goal.found}: {why}")
    if told:
        yield "## Missed goals, and why\n\n" + bullets(iter(told))


def _machine(results: Results) -> str:
    machine, data = results.content["machine"], results.content["data"]
    kernels = dict.fromkeys(str(build["kernel"]) for build in results.builds_of_runs().values())
    days = sorted({str(run["began"])[:10] for run in results.content["runs"] if "began" in run}) or [
        machine["date"]
    ]
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    said = [
        f"{when}: {machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {' and '.join(kernels)}, Python {machine['python']}."
    ]
    if "pictures" in data:
        facts = data["pictures"]
        each = facts["image_bytes"] / facts["samples"] / 1000
        said.append(f"Images: {facts['used']:,} JPEGs of {each:.0f} kB on average.")
    if "speech" in data:
        facts = data["speech"]
        each = facts["audio_seconds"] / facts["samples"]
        said.append(
            f"Speech: {facts['used']:,} of {facts['samples']:,} MP3 audio clips, {each:.1f} s on average."
        )
    return " ".join(said) + "\n"


def _configurations(results: Results) -> str:
    parts = ["## Versions and configurations\n"]
    for peer, facts in results.content["peers"].items():
        parts.append(f"**{goals.title(results, peer)}**")
        if facts["error"]:
            parts.append(f"- cannot be installed: {facts['error']}\n")
            continue
        versions = [f"{name} {version}" for name, version in facts["versions"].items()]
        parts.append(f"- {', '.join(versions)}; reads: {facts['reads']}; delivers: {facts['tensors']}")
        parts += [f"- {linked(line)}" for line in facts["guidance"]]
        calibrated = results.content["calibration"].get(peer, {})
        for job, storage in itertools.product(plan.JOBS, plan.STORAGES):
            if plan.calibrated(results, peer, job, storage) is None and any(
                "rate" in run for run in results.runs(job, storage, "steady", peer)
            ):
                parts.append(f"- {job}, {storage}: not calibrated")
        for place, found in calibrated.items():
            if "workers" not in found:
                continue
            job, storage = place.split()
            tried = [f"{workers}: {rate:,.0f}/s" for workers, rate in found["rates"].items()]
            tried += [f"failed with {told}" for told in found.get("failed", [])]
            parts.append(
                f"- {job}, {storage}: {found['workers']} workers ({', '.join(tried) or 'no choice'})"
            )
        parts.append("")
    return "\n".join(parts)
