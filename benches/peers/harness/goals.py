"""The goals, and whether they are reached: arithmetic on results.

Rates and CPU seconds are compared with all peers, because the type of batches costs nothing there. First
batch, memory and resume include torch's import, so they are compared with peers that deliver the same kind of
tensors. A peer of the other kind that needs less is named. Peers that could not be compared are named, too. A
goal without enough data is not judged, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from contenders.protocol import REALISTIC

from harness import builds, plan
from harness.plan import JOBS
from harness.stored import Figure, Results, figure

# Ours, by the type of batches.
OURS = {"numpy": "feedstock", "torch": "feedstock_torch"}
# Names of the types of batches.
KINDS = {"numpy": "arrays", "torch": "torch tensors"}

# Ours without any settings: only its memory is measured.
WITH_DEFAULTS = "feedstock_defaults"

# Ours on the same files that peers read, without the gains of its own shards.
AS_THEY_ARE = "feedstock_files"
OF_FILES = "numpy"  # the type of its batches

# Peers whose files hold pixels. They decode nothing while they are measured, but all jobs begin with
# decoding. They are shown, and named where rates are judged, but they are never the best peer.
DECODED_AHEAD = ("ffcv_raw",)

ALSO_OURS = (*OURS.values(), AS_THEY_ARE, WITH_DEFAULTS)

# feedstock's samples per second over the fastest peer's.
RATES = {"pictures-train": 1.8, "pictures-eval": 1.5, "pictures-f32": 1.5, "speech": 2.0}
OVER_PILLOW = 3.5
# The same for every job where answers come late.
LATE_RATE = 3.0

# Figures for which peers of both kinds count.
OF_ALL = ("rate", "cpu_s_per_1000", "wait_share")

# A peer that was not even tried.
NOT_RUN = "not run"

# Minimum rounds of each contender whose figures a goal depends on.
MIN_ROUNDS = 3


@dataclass(frozen=True)
class Goal:
    """One goal: the requirement, the result, and the peers compared with."""

    what: str
    asked: str
    found: str
    reached: bool | None  # None: not judged
    peers: int  # number of peers that have the figure
    close: bool = False  # the rounds of ours and of the best peer overlap with the limit
    doubts: tuple[str, ...] = ()  # why it is not judged

    @property
    def verdict(self) -> str:
        if self.reached is None:
            more = f"; and {len(self.doubts) - 2} more reasons" if len(self.doubts) > 2 else ""
            return f"not judged: {'; '.join(self.doubts[:2])}{more}"
        return f"{'yes' if self.reached else 'no'}{', within the spread' if self.close else ''}"


@dataclass(frozen=True)
class Place:
    """The location of a figure: job, storage and mode, and ours' kind of tensors."""

    job: str
    storage: str
    mode: str
    tensors: str

    @property
    def ours(self) -> str:
        return OURS[self.tensors]


@dataclass(frozen=True)
class Beside:
    """Our figure and those of all peers that count."""

    place: Place
    name: str
    ours: Figure
    theirs: dict[str, Figure]
    named: bool = False  # the goal names these peers, and applies to no others
    contender: str = ""  # ours, if it is not the one of the place

    @property
    def who(self) -> str:
        return self.contender or self.place.ours

    @property
    def least(self) -> bool:
        """Returns whether less is better."""
        return self.name != "rate"

    @property
    def best(self) -> str:
        """Returns the peer with the best median."""
        return (min if self.least else max)(self.theirs, key=lambda peer: self.theirs[peer].median)

    @property
    def ratio(self) -> float:
        """Returns ours over the best peer's."""
        return self.ours.median / self.theirs[self.best].median

    def may_be_best(self, peer: str) -> bool:
        """Returns whether one of its rounds is as good as the best median."""
        best, value = self.theirs[self.best].median, self.theirs[peer]
        return value.low <= best if self.least else value.high >= best


def title(results: Results, peer: str) -> str:
    return str(results.content["peers"][peer]["title"])


def agreement(results: Results, peer: str, job: str) -> dict[str, Any] | None:
    """Returns None if it was not compared, or had no outputs."""
    found: dict[str, Any] | None = results.content["agreement"].get(peer, {}).get(job)
    return None if found is None or "error" in found else found


def is_meant(place: Place, name: str, peer: str, described: dict[str, Any]) -> bool:
    """Returns whether a goal of this figure applies to the peer."""
    return peer not in (*ALSO_OURS, *DECODED_AHEAD) and (
        name in OF_ALL or described["tensors"] == place.tensors
    )


def counted(results: Results, place: Place, name: str, peer: str) -> bool:
    """Returns whether a peer may be the best one: it is meant, has the right outputs, and resumes at the
    right batch."""
    found = agreement(results, peer, place.job)
    if not is_meant(place, name, peer, results.content["peers"][peer]):
        return False
    if found is not None and not found["agrees"]:
        return False
    return all(results.values(place.job, place.storage, place.mode, peer, "right"))


def of(results: Results, place: Place, peer: str, name: str) -> Figure | None:
    return figure(results.values(place.job, place.storage, place.mode, peer, name))


def beside(results: Results, place: Place, name: str, contender: str = "") -> Beside | None:
    """Returns None without a figure of ours (that of the place, or of another ``contender``) or of any peer."""
    who = contender or place.ours
    ours = of(results, place, who, name) if who in results.content["peers"] else None
    theirs = {
        peer: value
        for peer in results.content["peers"]
        if counted(results, place, name, peer) and (value := of(results, place, peer, name)) is not None
    }
    return Beside(place, name, ours, theirs, contender=contender) if ours is not None and theirs else None


def doubts(results: Results, found: Beside) -> tuple[str, ...]:
    """Returns the reasons why the figures are not sufficient for a judgement."""
    return tuple(_doubts(results, found))


def _doubts(results: Results, found: Beside) -> Iterator[str]:
    place = found.place
    profiles = {str(build["profile"]) for build in results.content["builds"].values()}
    if profiles != {builds.RELEASE}:
        yield f"feedstock was built with the profile {' and '.join(sorted(profiles)) or 'unknown'}, not release"
    absent = [peer for peer in plan.PEERS if _why_absent(results, found, peer) == NOT_RUN]
    if absent and not found.named:
        yield f"{NOT_RUN}: {', '.join(absent)}"
    read = results.values(place.job, place.storage, place.mode, found.who, "fetched_share")
    least = results.content["settings"].get("min_fetched_share", plan.MIN_FETCHED_SHARE)
    if read and min(read) < least and found.name in OF_ALL:
        yield f"feedstock read only {min(read):.0%} of the data while it was measured, under {least:.0%}"
    figures = {found.who: found.ours, **found.theirs}
    few = [
        f"{title(results, peer)} {value.rounds}"
        for peer, value in figures.items()
        if value.rounds < MIN_ROUNDS and (peer == found.who or found.may_be_best(peer))
    ]
    if few:
        yield f"fewer than {MIN_ROUNDS} rounds: {', '.join(few)}"
    uncalibrated = [peer for peer in figures if not _is_calibrated(results, place, peer)]
    if uncalibrated:
        yield f"not calibrated: {', '.join(title(results, peer) for peer in uncalibrated)}"
    unknown = [peer for peer in figures if agreement(results, peer, place.job) is None]
    if unknown:
        yield f"outputs not compared: {', '.join(title(results, peer) for peer in unknown)}"
    own = agreement(results, found.who, place.job)
    if own is not None and not own["agrees"]:
        yield f"feedstock's own outputs differ: {own['note']}"


def _is_calibrated(results: Results, place: Place, peer: str) -> bool:
    modes = results.content["peers"][peer].get("modes")
    if modes and "steady" not in modes:
        return True  # it does not depend on a number of workers that short runs chose
    found = plan.calibrated(results, peer, place.job, place.storage)
    return found is not None and not found.get("error")


def _why_absent(results: Results, found: Beside, peer: str) -> str | None:
    """Returns why a peer that is meant, and could take part, has no figure."""
    place = found.place
    described = results.content["peers"].get(peer) or {**plan.facts(peer), "error": None}
    if peer in found.theirs or not is_meant(place, found.name, peer, described):
        return None
    if plan.why_not(described, place.job, place.storage, place.mode):
        return None
    if described["error"]:
        return "not installed"
    if results.content["prepared"].get(f"{peer} {plan.kind(place.job)}", {}).get("error"):
        return "its format was not written"
    if not results.runs(place.job, place.storage, place.mode, peer):
        return NOT_RUN
    agreed = agreement(results, peer, place.job)
    if agreed is not None and not agreed["agrees"]:
        return "its outputs differ"
    right = all(results.values(place.job, place.storage, place.mode, peer, "right"))
    return "failed" if right else "resumes at the wrong batch"


def _without(results: Results, found: Beside) -> str:
    """Returns the peers that were tried and could not be compared, with the reasons."""
    whys = (
        {} if found.named else {peer: _why_absent(results, found, peer) for peer in results.content["peers"]}
    )
    told = [f"{title(results, peer)} ({why})" for peer, why in whys.items() if why not in (None, NOT_RUN)]
    return f"; without {', '.join(told)}" if told else ""


def goals(results: Results) -> list[Goal]:
    found: list[Goal | None] = []
    for job in JOBS:
        for storage in plan.STORAGES:
            for tensors in OURS:
                found += _of_rates(results, Place(job, storage, "steady", tensors))
            if storage == REALISTIC:
                found += _of_steps(results, job)
        for tensors in OURS:
            stall, resume = Place(job, "local", "stall", tensors), Place(job, "local", "resume", tensors)
            for name, what in (("running", "memory running"), ("stalled", "memory stalled")):
                found.append(_least(results, stall, f"{name}_bytes", f"{job}, {tensors}: {what}, MiB", 2**20))
                if tensors == "numpy":
                    named = f"{job}, {tensors}, with its defaults: {what}, MiB"
                    found.append(_least(results, stall, f"{name}_bytes", named, 2**20, WITH_DEFAULTS))
            found.append(_least(results, resume, "resume_s", f"{job}, {tensors}: resume, s", 1))
    return [goal for goal in found if goal is not None]


def _of_rates(results: Results, place: Place) -> Iterator[Goal | None]:
    where = f"{place.job}, {place.storage}, {place.tensors}"
    yield from _of_contender(results, place, where)
    if place.job == "pictures-train" and place.tensors == "torch":
        rate = beside(results, place, "rate")
        if rate is not None and "torch_pil" in rate.theirs:
            alone = Beside(place, "rate", rate.ours, {"torch_pil": rate.theirs["torch_pil"]}, named=True)
            yield _ratio(results, alone, f"{where}: rate over PyTorch with Pillow", OVER_PILLOW)
    if place.tensors == OF_FILES:
        yield from _of_contender(results, place, f"{where}, files as they are", AS_THEY_ARE)


def _of_steps(results: Results, job: str) -> Iterator[Goal | None]:
    for tensors in OURS:
        place = Place(job, REALISTIC, "steps", tensors)
        what = "with steps: waiting, % of the time"
        yield _least(results, place, "wait_share", f"{job}, {REALISTIC}, {tensors}, {what}", 0.01)
        if tensors == OF_FILES:
            named = f"{job}, {REALISTIC}, {tensors}, files as they are, {what}"
            yield _least(results, place, "wait_share", named, 0.01, AS_THEY_ARE)


def asked_rate(place: Place) -> float:
    """Returns the goal for feedstock's samples per second over the fastest peer's."""
    return LATE_RATE if place.storage == REALISTIC else RATES[place.job]


def _of_contender(results: Results, place: Place, where: str, contender: str = "") -> Iterator[Goal | None]:
    rate = beside(results, place, "rate", contender)
    if rate is not None:
        yield _ratio(results, rate, f"{where}: rate over the fastest peer's", asked_rate(place))
    yield _least(results, place, "cpu_s_per_1000", f"{where}: CPU-s per 1000 samples", 1, contender)
    yield _least(results, place, "first_batch_s", f"{where}: first batch, s", 1, contender)


def _judged(
    results: Results, found: Beside, what: str, asked: str, said: str, reached: bool, close: bool
) -> Goal:
    why = doubts(results, found)
    said += _without(results, found)
    return Goal(what, asked, said, None if why else reached, len(found.theirs), close, why)


def _ratio(results: Results, found: Beside, what: str, asked: float) -> Goal:
    ours, theirs = found.ours, found.theirs[found.best]
    low, high = ours.low / theirs.high, ours.high / theirs.low
    said = f"{found.ratio:.2f} × ({ours.median:,.0f}/s; {title(results, found.best)} {theirs.median:,.0f}/s)"
    for peer in DECODED_AHEAD if not found.named else ():
        ahead = of(results, found.place, peer, found.name)
        if ahead is not None:
            said += f"; {ours.median / ahead.median:.2f} × {title(results, peer)}"
    return _judged(results, found, what, f"{asked} ×", said, found.ratio >= asked, low < asked <= high)


def _least(
    results: Results, place: Place, name: str, what: str, unit: float, contender: str = ""
) -> Goal | None:
    found = beside(results, place, name, contender)
    if found is None:
        return None
    ours, theirs = found.ours, found.theirs[found.best]
    digits = 0 if unit > 1 else 2

    def told(value: Figure) -> str:
        return f"{value.median / unit:,.{digits}f}"

    said = f"{told(ours)} ({title(results, found.best)} {told(theirs)})"
    asked = "least of all peers"
    if name not in OF_ALL:
        asked = f"least of peers with {KINDS[place.tensors]}"
        other = next(tensors for tensors in OURS if tensors != place.tensors)
        rest = beside(results, Place(place.job, place.storage, place.mode, other), name)
        if rest is not None and rest.theirs[rest.best].median < ours.median:
            said += f"; with {KINDS[other]}, {title(results, rest.best)} {told(rest.theirs[rest.best])}"
    right = all(results.values(place.job, place.storage, place.mode, found.who, "right"))
    close = ours.low <= theirs.high and theirs.low <= ours.high
    return _judged(results, found, what, asked, said, ours.median < theirs.median and right, close)
