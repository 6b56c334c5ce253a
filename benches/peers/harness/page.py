"""``docs/benchmarks.md`` from the results; the plots and the results beside it."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import goals, plan, plots, table
from harness.documentation import linked
from harness.stored import Results

HEAD = """\
# feedstock beside what people use

Made from [{results}]({results}); nothing in it is written by hand. Once more from that file, and anew:

```sh
benches/peers/run --parts report --results PATH/TO/results.json --page PATH/TO/{name}
benches/peers/run --help
```
"""


def write(results: Results, path: Path) -> None:
    """The page, and beside it a folder of its name with plots and results; links are relative."""
    beside = path.parent / path.stem
    drawn = plots.draw(results, beside)
    kept = beside / "results.json"
    if not kept.is_file() or not kept.samefile(results.path):
        shutil.copyfile(results.path, kept)
    parts = [
        HEAD.format(results=f"{path.stem}/results.json", name=path.name),
        _machine(results),
        f"## Asked for and measured\n\n{table.asked(results)}",
    ]
    for job, storage, text in table.tables(results):
        title = f"{job}, {storage}"
        parts.append(f"## {title}\n")
        parts.append(f"![{title}]({path.stem}/{drawn[job, storage].name})\n")
        parts.append(text)
    parts += [f"## {title}\n\n{text}" for title, text in table.others(results)]
    parts.append("## How it was measured\n\n" + "\n".join(f"- {line}" for line in method(results)) + "\n")
    parts.append(_configurations(results))
    path.write_text("\n".join(parts))


def method(results: Results) -> Iterator[str]:
    """What was done: nothing that the results do not hold."""
    content = results.content
    runs: list[dict[str, Any]] = content["runs"]
    modes = {(run["mode"], run["storage"]) for run in runs if "error" not in run}
    rates = [storage for mode, storage in sorted(modes) if mode == "steady"]
    settings = content["settings"]
    yield (
        "Contenders read the same pictures and clips, made by `feedstock synth`"
        + (
            "; formats of their own were written from the same JPEG and MP3 bytes, feedstock's with restart markers "
            "in the JPEGs, without loss (`feedstock_files` reads the pictures as they are)"
            if content["prepared"]
            else ""
        )
        + "."
    )
    yield (
        "Each run is a process of its own, in an environment of its own, held to the same "
        f"{content['machine']['cores']} cores. A round runs every contender once, in a random order (seed "
        f"{settings['order_seed']}); figures are medians, ± half of the range of the rounds."
    )
    yield (
        "Goals of rates and CPU seconds are judged beside all peers. First batch, memory and resume, where torch's "
        "import counts, and the column “feedstock ×” stand beside peers that hand out the same kind: torch tensors or "
        "arrays."
    )
    if rates:
        yield (
            f"A rate is that of {settings['measured_batches']} batches in the consumer's hands in the middle of the "
            f"first epoch, behind {settings['warm_up_batches']} batches of warm-up and before the epoch's last ones: "
            "neither full queues nor idle workers count. From local files a fast contender is measured as many "
            f"times over, into its next epochs, as begin within {settings['least_s']:g} s."
        )
    if "s3" in rates:
        yield (
            "From S3 the same: peers that fetch far ahead, or keep a cache on disk (MosaicML Streaming, LitData), have "
            "part of what is measured on the local disk by then, which counts for them. The server runs on the same "
            "cores; its CPU time is not the contender's, and is told beside it, of the whole run"
            f"{f' (Cargo profile {told})' if (told := settings.get('s3_server')) else ''}."
        )
    shares = [run["fetched_share"] for run in runs if "fetched_share" in run]
    if shares:
        yield (
            "feedstock read from storage, while its rates were taken, at least "
            f"{min(shares):.0%} of the bytes of the samples that it handed out then; under "
            f"{settings['min_fetched_share']:.0%} no goal is judged."
        )
    if rates:
        scopes = " or ".join(sorted({run["scope"] for run in runs if "scope" in run}))
        yield (
            "CPU time is that of all the contender's processes and threads"
            f"{f' (its {scopes})' if scopes else ''}, while the rate was taken."
        )
        yield "The first batch is counted from `exec`: interpreter, imports and the opening of the data are in it."
    yield (
        "Memory is proportional (PSS), summed over processes: anonymous pages and shared memory. Pages of mapped files "
        "are told beside it, and not judged: they are the kernel's page cache."
    )
    if any(mode == "stall" for mode, _ in modes):
        yield (
            "At rest: a loader that was opened, and asked for nothing. feedstock has not imported torch by then, as "
            "most peers with torch tensors have. It is not judged."
        )
        yield (
            f"Memory running and stalled: the consumer took {settings['stall_steps']} batches as fast as they came, "
            f"then paused for {settings['stall_s']:g} s, in which loaders fill their queues: the most until the pause, "
            "and the most in its second half. Goals of memory are judged by these runs alone, whose PSS is read 20 "
            "times as often as that of runs for a rate. feedstock has the settings there that its rates were measured "
            "with; beside it stands what it takes with its defaults."
        )
    if any(mode == "resume" for mode, _ in modes):
        yield "Resuming is counted from `exec` to the batch that the saving run got next; its samples are compared."
    if any(mode in ("stall", "resume") for mode, _ in modes):
        yield "Memory and resuming are measured on local files, with pictures-train and speech."
    if content["calibration"]:
        yield (
            "Workers (or threads) are what short runs found best, from each storage, on "
            f"{plan.CALIBRATED_ON} for all pictures and on speech; versions and configurations, below, say what was "
            "tried."
        )
    yield from _agreement(results)
    for name, build in content["builds"].items():
        commit = f"commit {build['commit'][:12]}{' with changes' if build['dirty'] else ''}"
        yield (
            f"feedstock: {commit}, Cargo's profile {build['profile']} ({build['profile_settings']}); wheel "
            f"{build['wheel']}, harness {build['programs']} (build {name})."
        )
    if content["ceilings"]:
        yield (
            "Ceilings are one core's CPU time of the bare part (`cargo bench -p feedstock-ops`), times the number of "
            "cores."
        )


def _agreement(results: Results) -> Iterator[str]:
    settings = results.content["settings"]
    limits: dict[str, float] = settings.get("row_limits", {})
    agreements = results.content["agreement"].values()
    compared = {job for found in agreements for job in found if "error" not in found[job]}
    rows = [job for job in sorted(compared) if job in limits]
    if rows:
        told = ", ".join(f"{limits[job]} for {job}" for job in rows)
        yield (
            "Outputs: every row of a small data set is compared with the reference's row of the same sample (PyTorch "
            "with Pillow; of speech soundfile and torchaudio). The worst row's mean absolute difference is at most "
            f"{told} (levels of 255; natural logarithms)."
        )
    if compared - limits.keys() and "crop_epochs" in settings:
        yield (
            f"Outputs with random crops: each picture {settings['crop_epochs']} times; crops' means and standard "
            "deviations, how both are distributed about their picture's, and the means of an 8 × 8 grid of crops are "
            f"tested against the reference's, each at a confidence of {settings['crop_confidence']:.2%}."
        )
    if compared:
        yield "Contenders whose outputs differ are shown, and never count as the best peer."


def _machine(results: Results) -> str:
    machine, data = results.content["machine"], results.content["data"]
    said = [
        f"{machine['date']}: {machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}."
    ]
    if "pictures" in data:
        facts = data["pictures"]
        each = facts["image_bytes"] / facts["samples"] / 1000
        said.append(f"Pictures: {facts['used']:,} JPEGs of about 400×350 px and {each:.0f} kB.")
    if "speech" in data:
        facts = data["speech"]
        each = facts["audio_seconds"] / facts["samples"]
        said.append(f"Speech: {facts['used']:,} MP3 clips at 48 kHz, mean {each:.1f} s.")
    return " ".join(said) + "\n"


def _configurations(results: Results) -> str:
    parts = ["## Versions and configurations\n"]
    for peer, facts in results.content["peers"].items():
        parts.append(f"**{goals.title(results, peer)}**")
        if facts["error"]:
            parts.append(f"- cannot be installed: {facts['error']}\n")
            continue
        versions = [f"{name} {version}" for name, version in facts["versions"].items()]
        parts.append(f"- {', '.join(versions)}; reads: {facts['reads']}; hands out: {facts['tensors']}")
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
