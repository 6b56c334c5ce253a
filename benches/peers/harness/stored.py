"""Stores ``results.json``, merged run by run so that an interrupted benchmark resumes."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION = 3

# Properties that all runs in one file must share. The sources are all those that ``run`` names, including
# tests and READMEs.
SAME_BUILD = ("sources", "profile", "profile_settings", "programs", "s3_server")

# Properties that runs must share if they are compared with each other: those of one job, storage and mode.
SAME_MACHINE = ("cpu", "kernel")

# The measured parts of a file, which belong to a build.
MEASURED = ("runs", "agreement", "calibration", "ceilings")


def write_whole(path: Path, text: str) -> None:
    """Writes a file by renaming, so that an existing file is always complete."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)


@dataclass(frozen=True)
class Key:
    """One run."""

    job: str
    storage: str
    mode: str
    peer: str
    round: int


class Unmixable(ValueError):
    """The file's runs and the requested ones do not belong together."""


class Results:
    """The file in memory. Every change is written at once, as a whole, in place of the old file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {
            "version": VERSION,
            "machine": {},
            "builds": {},
            "settings": {},
            "data": {},
            "environments": {},
            "peers": {},
            "calibration": {},
            "prepared": {},
            "agreement": {},
            "ceilings": {},
            "runs": [],
        }
        if path.is_file():
            found = json.loads(path.read_text())
            if found.get("version") != VERSION:
                raise Unmixable(
                    f"{path}: version must be {VERSION}; got {found.get('version')!r}: measure again"
                )
            self.content |= found
        self._build = ""
        self._repeating = False

    @property
    def holds_figures(self) -> bool:
        return any(self.content[part] for part in MEASURED)

    def built(self, build: dict[str, Any]) -> None:
        """Stores the build and machine of the runs from here on. Runs of another build are not mixed with
        them."""
        for before in self.content["builds"].values() if self.holds_figures else []:
            differ = [name for name in SAME_BUILD if before.get(name) != build[name]]
            if differ:
                told = ", ".join(f"{name} {before.get(name)!r}, not {build[name]!r}" for name in differ)
                raise Unmixable(
                    f"{self.path} holds runs of another build ({told}): "
                    "set --out to another folder, or move the file away"
                )
        if not self.holds_figures:
            self.content["builds"] = {}
        name = f"{build['commit'][:12]}{'-dirty' if build['dirty'] else ''}-{build['sources'][:8]}-{build['profile']}"
        name += f" on {build['cpu']}, Linux {build['kernel']}"
        self.content["builds"][name] = build
        self._build = name

    def described(self, peer: str, facts: dict[str, Any], references: dict[str, str]) -> bool:
        """Stores a contender's description, and returns whether its program has changed. If so, its figures
        are deleted, and if it is the reference of a job, all agreements of that job."""
        before = self.content["peers"].get(peer, {}).get("program", facts["program"])
        self.content["peers"][peer] = facts
        if before == facts["program"]:
            return False
        self.content["runs"] = [run for run in self.content["runs"] if run["peer"] != peer]
        self.content["calibration"].pop(peer, None)
        self.content["agreement"].pop(peer, None)
        for job, reference in references.items():
            if reference == peer:
                for found in self.content["agreement"].values():
                    found.pop(job, None)
        return True

    def settle(self, settings: dict[str, Any]) -> None:
        """Stores the settings of runs. Runs with other settings are not mixed with them."""
        before = self.content["settings"]
        differ = [
            name
            for name, value in settings.items()
            if self.holds_figures and before.get(name, value) != value
        ]
        if differ:
            told = ", ".join(f"{name} {before[name]!r}, not {settings[name]!r}" for name in differ)
            raise Unmixable(
                f"{self.path} holds runs with {told}: set --out to another folder, or move the file away"
            )
        self.content["settings"] = before | settings

    def run(self, key: Key) -> dict[str, Any] | None:
        return next((run for run in self.content["runs"] if _key(run) == key), None)

    def again(self, what: str | None, command: dict[str, Any]) -> None:
        """Begins to repeat the runs of ``command``, or resumes that after an interruption."""
        self._repeating = what == "all"
        if what is None:
            return
        begun = self.content.get("again")
        if begun is None or begun["command"] != command:
            self.content["again"] = {"command": command, "what": what, "since": time.time()}

    def finished(self) -> None:
        """Marks the repetition that ``again`` began as done."""
        self.content.pop("again", None)
        self.write()

    def is_done(self, facts: dict[str, Any] | None, repeating: bool) -> bool:
        """Returns whether a figure (or a failure) exists and need not be made. If figures are ``repeating``,
        it must be newer than that. A failure with tries left does not count."""
        if facts is None or facts.get("left"):
            return False
        begun = self.content.get("again")
        if self._repeating and "build" in facts and self._is_elsewhere(facts):
            return False
        if not repeating or begun is None or float(facts.get("made", 0.0)) >= begun["since"]:
            return True
        return bool(begun["what"] == "failed" and "error" not in facts)

    def add(self, key: Key, facts: dict[str, Any]) -> None:
        """Stores a run, and replaces one of the same key. Runs of another machine that would be compared with
        it are deleted if all are repeated; otherwise it is not stored."""
        runs = [run for run in self.content["runs"] if _key(run) != key]
        elsewhere = [
            run for run in runs if _compared(run) == _compared(key.__dict__) and self._is_elsewhere(run)
        ]
        if elsewhere and not self._repeats(elsewhere):
            raise Unmixable(
                f"{self.path} holds runs of {key.job}, {key.storage}, {key.mode} that another machine made (build "
                f"{elsewhere[0]['build']}): --again with all peers measures them again here; or set --out to another "
                "folder"
            )
        self.content["runs"] = [
            *(run for run in runs if run not in elsewhere),
            {**key.__dict__, "build": self._build, **facts},
        ]
        self.write()

    def builds_of_runs(self) -> dict[str, dict[str, Any]]:
        """Returns the builds of the runs, by name."""
        used = {run["build"] for run in self.content["runs"]}
        return {name: build for name, build in self.content["builds"].items() if name in used}

    def machine_of(self, run: dict[str, Any]) -> tuple[str, ...]:
        """Returns the machine that made a run: the properties in ``SAME_MACHINE``."""
        build = self.content["builds"][run["build"]]
        return tuple(str(build[name]) for name in SAME_MACHINE)

    def _repeats(self, runs: list[dict[str, Any]]) -> bool:
        """Returns whether all of these contenders are being measured again."""
        return self._repeating and {run["peer"] for run in runs} <= set(
            self.content["again"]["command"]["peers"]
        )

    def _is_elsewhere(self, run: dict[str, Any]) -> bool:
        """Returns whether another machine made it."""
        return self.machine_of(run) != self.machine_of({"build": self._build})

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(self.content, indent=1) + "\n")

    def runs(self, job: str, storage: str, mode: str, peer: str) -> list[dict[str, Any]]:
        """Returns runs in the order of rounds."""
        found = [
            run
            for run in self.content["runs"]
            if (run["job"], run["storage"], run["mode"], run["peer"]) == (job, storage, mode, peer)
        ]
        return sorted(found, key=lambda run: int(run["round"]))

    def values(self, job: str, storage: str, mode: str, peer: str, name: str) -> list[float]:
        """Returns a figure from every round that has it."""
        return [float(run[name]) for run in self.runs(job, storage, mode, peer) if name in run]

    def error(self, job: str, storage: str, mode: str, peer: str) -> str | None:
        """Returns why the last run has no figure."""
        found = self.runs(job, storage, mode, peer)
        return found[-1].get("error") if found else None


def _compared(run: dict[str, Any]) -> tuple[str, ...]:
    """Returns the properties that it shares with the runs that it is compared with."""
    return run["job"], run["storage"], run["mode"]


def _key(run: dict[str, Any]) -> Key:
    return Key(run["job"], run["storage"], run["mode"], run["peer"], run["round"])


@dataclass(frozen=True)
class Figure:
    """A median, and the range of the rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @property
    def spread(self) -> float:
        """Returns the range of the rounds as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def figure(values: Iterable[float]) -> Figure | None:
    kept = list(values)
    return Figure(statistics.median(kept), min(kept), max(kept), len(kept)) if kept else None


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def machine() -> dict[str, Any]:
    return {
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
