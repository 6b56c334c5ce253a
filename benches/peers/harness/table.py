"""Formats results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from contenders.protocol import REALISTIC, is_bucket

from harness import agree, goals, method, plan
from harness.stored import Figure, Results, figure

MIB = 2**20

# Data that are not converted: ours reads audio clips unchanged.
READ_AS_THEY_ARE = {(peer, "speech") for peer in goals.OURS.values()}


def rows(head: Sequence[str], lines: Iterable[Sequence[str]], *, figures: bool = True) -> str:
    """Returns a Markdown table; either all columns but the first are figures, or none is."""
    ruler = ["---", *["---:" if figures else "---"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ruler, *lines)) + "\n"


def shown(value: Figure | None, digits: int = 0, unit: float = 1.0, *, spread: bool = False) -> str:
    if value is None:
        return "–"
    text = f"{value.median / unit:,.{digits}f}"
    return f"{text} ±{value.spread / 2:.0%}" if spread and value.rounds > 1 else text


def tries(runs: list[dict[str, Any]], name: str) -> str:
    """Returns the number of rounds with the figure and, if any, the numbers of rounds without it and of
    repeated ones."""
    made, again = sum(name in run for run in runs), sum(int(run.get("tries", 1)) > 1 for run in runs)
    told = [f"{len(runs) - made} failed"] if made < len(runs) else []
    told += [f"{again} tried again"] if again else []
    return f"{made} ({', '.join(told)})" if told else str(made)


def rates(results: Results, job: str, storage: str) -> str:
    """Returns all contenders of one job, fastest first, with bare parts above them."""
    lines: list[tuple[float, list[str]]] = []
    absent = []
    for peer in results.content["peers"]:

        def of(name: str, peer: str = peer) -> Figure | None:
            return figure(results.values(job, storage, "steady", peer, name))

        rate = of("rate")
        if rate is None:
            why = reason(results, peer, job, storage)
            if why:
                absent.append(f"- {goals.title(results, peer)}: {why}")
            continue
        tensors = str(results.content["peers"][peer]["tensors"])
        ours = figure(results.values(job, storage, "steady", goals.OURS[tensors], "rate"))
        line = [
            f"**{goals.title(results, peer)}**" if peer in goals.ALSO_OURS else goals.title(results, peer),
            tensors,
            shown(rate, spread=True),
            f"{ours.median / rate.median:.2f}" if ours else "–",
            shown(of("cpu_s_per_1000"), 2),
            shown(of("cores_used"), 2),
            shown(of("first_batch_s"), 2),
            shown(of("peak_bytes"), 0, MIB),
            shown(of("peak_file_bytes"), 0, MIB),
            shown(of("processes")),
            shown(of("threads")),
            shown(of("workers")),
            *([shown(of("server_cpu_s"), 1)] if is_bucket(storage) else []),
            tries(results.runs(job, storage, "steady", peer), "rate"),
            agreement(results, peer, job),
        ]
        lines.append((rate.median, line))
    lines.sort(key=lambda line: -line[0])
    head = [
        "",
        "tensors",
        "samples/s",
        "feedstock ×",
        "CPU-s per 1000",
        "cores",
        "first batch, s",
        "peak MiB",
        "mapped files MiB",
        "processes",
        "threads",
        "workers",
        *(["server CPU-s per run"] if is_bucket(storage) else []),
        "rounds",
        "outputs",
    ]
    cores = int(results.content["machine"].get("cores", 1))
    above = [
        [
            f"*bare: {name}, {cores} cores*",
            "",
            f"*{cores * value:,.0f}*",
            "",
            f"*{1000 / value:.2f}*",
            *[""] * (len(head) - 5),
        ]
        for name, value in ceilings_of(results, job).items()
    ]
    text = rows(head, [*above, *(line for _, line in lines)])
    text += f"\n{beside(results, job, storage)}\n"
    for peer in goals.ALSO_OURS:
        shares = figure(results.values(job, storage, "steady", peer, "fetched_share"))
        if shares and peer in results.content["peers"]:
            text += (
                f"\n{goals.title(results, peer)} read {shares.median:.0%} (minimum {shares.low:.0%}) of the bytes "
                "that it delivered from storage while its rates were measured.\n"
            )
    return text + ("\nNot in this table:\n\n" + "\n".join(absent) + "\n" if absent else "")


def beside(results: Results, job: str, storage: str) -> str:
    """Returns how busy the machine was otherwise."""
    runs = [run for peer in results.content["peers"] for run in results.runs(job, storage, "steady", peer)]
    runs = [run for run in runs if "rate" in run]
    others, stolen = figure(run["others_cores"] for run in runs), figure(run["steal_share"] for run in runs)
    load = figure(run["load_before"] for run in runs)
    if others is None or stolen is None or load is None:
        return ""
    return (
        f"During these {len(runs)} runs, median and worst: "
        f"other processes used {others.median:.2f} and {others.high:.2f} cores, "
        f"{stolen.median:.1%} and {stolen.high:.1%} of the machine's time was stolen; "
        f"load average before them {load.median:.1f} and {load.high:.1f}.{_later(results, job, storage)}"
    )


def _later(results: Results, job: str, storage: str) -> str:
    """Returns which contenders ran after feedstock's rounds, as those do whose program has changed since."""
    began = {
        peer: [
            run["began"]
            for run in results.runs(job, storage, "steady", peer)
            if "rate" in run and "began" in run
        ]
        for peer in results.content["peers"]
    }
    ours = began.get(goals.OURS["numpy"])
    later = [
        goals.title(results, peer)
        for peer, times in began.items()
        if ours and times and min(times) > max(ours)
    ]
    return f" Measured later, in separate rounds: {', '.join(later)}." if later else ""


def ceilings_of(results: Results, job: str) -> dict[str, float]:
    """Returns the ceilings of this job."""
    kept: dict[str, float] = results.content["ceilings"]
    wanted = ["libjpeg-turbo, full decode"] if plan.kind(job) == "pictures" else ["symphonia, MP3 decode"]
    if job == "pictures-train":
        wanted.append("libjpeg-turbo and fast_image_resize, crop and flip")
    wanted += [f"feedstock's chain, {job}", f"feedstock's chain, {job}, restart markers"]
    return {name: kept[name] for name in wanted if name in kept}


def agreement(results: Results, peer: str, job: str) -> str:
    found = goals.agreement(results, peer, job)
    if found is None:
        return "not compared"
    again = ", at the second try" if found.get("tries", 1) > 1 else ""
    if not found["agrees"]:
        return f"differ: {found['note']}"
    if job in results.content["settings"].get("row_limits", agree.ALLOWED):
        return f"agree, worst {found['worst']:.2f} of {found['limit']:g}{again}"
    return f"agree, {found['difference']:.2f} of {found['limit']:.2f}{again}"


def reason(results: Results, peer: str, job: str, storage: str, mode: str = "steady") -> str | None:
    """Returns why a contender has no figure; None if it was never meant to have one."""
    facts = results.content["peers"][peer]
    if facts["error"]:
        return f"cannot be installed: {facts['error']}"
    why = plan.why_not(facts, job, storage, mode)
    if why:
        return None if why.startswith("this way of using it") else why
    prepared = results.content["prepared"].get(f"{peer} {plan.kind(job)}", {})
    if prepared.get("error"):
        return f"its native format could not be written: {prepared['error']}"
    error = results.error(job, storage, mode, peer)
    return f"failed: {error}" if error else "not run"


def memory(results: Results, job: str) -> str:
    lines = []
    for peer in results.content["peers"]:

        def of(name: str, peer: str = peer) -> Figure | None:
            return figure(results.values(job, "local", "stall", peer, name))

        running, stalled, peak = of("running_bytes"), of("stalled_bytes"), of("stalled_peak_bytes")
        if running is None or stalled is None:
            why = reason(results, peer, job, "local", "stall")
            if why and why != "not run":
                name = [goals.title(results, peer), str(results.content["peers"][peer]["tensors"])]
                lines.append((float("inf"), [*name, why, *["–"] * 6, "0"]))
            continue
        cells = [shown(of("rest_bytes"), 0, MIB), shown(running, 0, MIB, spread=True)]
        cells += [shown(stalled, 0, MIB, spread=True), shown(peak, 0, MIB)]
        cells += [f"{(stalled.median - running.median) / MIB:+,.0f}", shown(of("running_file_bytes"), 0, MIB)]
        tensors = str(results.content["peers"][peer]["tensors"])
        runs = results.runs(job, "local", "stall", peer)
        rest = [shown(of("stalled_cores"), 2), tries(runs, "stalled_bytes")]
        lines.append((stalled.median, [goals.title(results, peer), tensors, *cells, *rest]))
    lines.sort(key=lambda line: line[0])
    head = [
        "MiB",
        "tensors",
        "at rest",
        "running",
        "stalled",
        "peak while stalled",
        "growth",
        "mapped files, running",
        "cores busy while stalled",
        "rounds",
    ]
    return rows(head, [line for _, line in lines])


def waiting(results: Results, job: str) -> str:
    """Returns how long a consumer with steps waits, least first."""
    lines = []
    for peer in results.content["peers"]:

        def of(name: str, peer: str = peer) -> Figure | None:
            return figure(results.values(job, REALISTIC, "steps", peer, name))

        tensors = str(results.content["peers"][peer]["tensors"])
        share = of("wait_share")
        if share is not None:
            cells = [shown(share, 1, 0.01), shown(of("longest_wait_s"), 2), shown(of("rate"), spread=True)]
            cells += [shown(of("cpu_s_per_1000"), 2), shown(of("workers"))]
            cells.append(tries(results.runs(job, REALISTIC, "steps", peer), "wait_share"))
            lines.append((share.median, [goals.title(results, peer), tensors, *cells]))
        elif (why := reason(results, peer, job, REALISTIC, "steps")) and not why.startswith("not run"):
            lines.append((float("inf"), [goals.title(results, peer), tensors, why, *["–"] * 5]))
    lines.sort(key=lambda line: line[0])
    head = ["", "tensors", "waiting, % of the time", "longest wait, s", "samples/s", "CPU-s per 1000"]
    return rows([*head, "workers", "rounds"], [line for _, line in lines])


def resume(results: Results, job: str) -> str:
    lines = []
    for peer in results.content["peers"]:
        took = figure(results.values(job, "local", "resume", peer, "resume_s"))
        right = results.values(job, "local", "resume", peer, "right")
        if took is not None:
            said = "right" if all(right) else "not the right one"
            tensors = str(results.content["peers"][peer]["tensors"])
            runs = results.runs(job, "local", "resume", peer)
            cells = [shown(took, 2, spread=True), said, tries(runs, "resume_s")]
            lines.append((took.median, [goals.title(results, peer), tensors, *cells]))
        elif (why := reason(results, peer, job, "local", "resume")) and not why.startswith("not run"):
            lines.append((float("inf"), [goals.title(results, peer), "", "–", why, "–"]))
    lines.sort(key=lambda line: line[0])
    return rows(["", "tensors", "exec to first batch, s", "batch", "rounds"], [line for _, line in lines])


def prepared(results: Results) -> str:
    kept = results.content["prepared"]
    lines = []
    for name, facts in sorted(kept.items()):
        peer, _, what = name.partition(" ")
        if (peer, what) in READ_AS_THEY_ARE:
            continue
        took = f"{facts['seconds']:.1f}" if "seconds" in facts else f"failed: {facts['error']}"
        lines.append([goals.title(results, peer), what, took])
    return rows(["", "of", "seconds"], lines) if lines else ""


def asked(found: list[goals.Goal]) -> str:
    lines = [
        [g.what, g.asked, g.found, str(g.peers), f"**{g.verdict}**" if g.reached is False else g.verdict]
        for g in found
    ]
    return rows(["", "goal", "measured (best peer)", "peers", "reached"], lines, figures=False)


def fastest(results: Results) -> str:
    """Returns feedstock's rate over the fastest peer's, as an overview."""
    kinds = {kind: (kind, ours) for kind, ours in goals.OURS.items()}
    kinds["files as they are"] = (goals.OF_FILES, goals.AS_THEY_ARE)
    storages = plan.reported_storages(results)
    lines = []
    for job in plan.JOBS:
        cells = []
        for storage in storages:
            for tensors, contender in kinds.values():
                place = goals.Place(job, storage, "steady", tensors)
                found = goals.beside(results, place, "rate", contender)
                cells.append(f"{found.ratio:.2f} × ({goals.title(results, found.best)})" if found else "–")
        lines.append([job, *cells])
    heads = [f"{storage}, {named}" for storage in storages for named in kinds]
    return rows(["rate over the fastest peer's", *heads], lines, figures=False)


def jobs(results: Results) -> str:
    sizes = results.content["settings"].get("batch_sizes", plan.BATCH_SIZES)
    lines = [[job, *method.JOBS[job], str(sizes[job])] for job in plan.JOBS]
    return rows(["job", "work", "sample", "batch"], lines, figures=False)


def tables(results: Results) -> Iterable[tuple[str, str, str]]:
    """Yields jobs and storages of which there are rates, with their tables."""
    for job in plan.JOBS:
        for storage in plan.STORAGES:
            if any(results.values(job, storage, "steady", peer, "rate") for peer in results.content["peers"]):
                yield job, storage, rates(results, job, storage)


def others(results: Results) -> Iterable[tuple[str, str]]:
    """Yields titles and tables of the other results."""
    for job in plan.JOBS:
        for storage, mode, name, said, made in (
            (REALISTIC, "steps", "wait_share", f"Waiting with steps, {REALISTIC}", waiting),
            ("local", "stall", "stalled_bytes", "Memory", memory),
            ("local", "resume", "resume_s", "Resume in the middle of an epoch", resume),
        ):
            if any(results.values(job, storage, mode, peer, name) for peer in results.content["peers"]):
                yield f"{said}, {job}", made(results, job)
    if results.content["prepared"]:
        yield "Conversion to native formats", prepared(results)


def sections(results: Results) -> Iterable[tuple[str, str]]:
    for job, storage, text in tables(results):
        yield f"{job}, {storage}", text
    yield from others(results)


def markdown(results: Results) -> str:
    parts = [f"## Goals and measurements\n\n{asked(goals.goals(results))}"]
    parts += [f"## {title}\n\n{text}" for title, text in sections(results)]
    return "\n".join(parts)


def summary(results: Results) -> str:
    """Returns a short summary for a terminal."""
    found = goals.goals(results)
    reached = sum(goal.reached is True for goal in found)
    judged = sum(goal.reached is not None for goal in found)
    marks = {True: "yes", False: "NO", None: "?"}
    lines = []
    for goal in found:
        lines.append(f"{marks[goal.reached]:>3}  {goal.what}: {goal.found}, goal {goal.asked}")
        if goal.reached is None:
            lines.append(f"     {goal.verdict}")
    return "\n".join(
        [*lines, f"{reached} of {judged} judged goals are reached; {len(found) - judged} are not judged"]
    )
