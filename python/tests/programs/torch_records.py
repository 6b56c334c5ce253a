"""The samples that entered the training steps of a test, by rank, and those that a checkpoint covers.

A record is one line of JSON per rank and step. It is written before the step's collectives, so it is on disk even if
the process is killed immediately after.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True)
class Record:
    """One step of one process."""

    attempt: int
    """The number of earlier starts of the job."""
    rank: int
    """The process's rank, not its data-parallel rank."""
    epoch: int
    position: int
    """The position of the step's first row in the epoch's order: the loader's position before the step."""
    ids: list[int]
    """Sample ids, row by row."""
    valid: list[bool]
    rows: list[int]
    """CRC-32 of each row's image."""


class Records:
    """Writes the records of one process."""

    def __init__(self, folder: Path, attempt: int, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.attempt, self.rank = attempt, rank
        self.file: TextIO = (folder / f"attempt{attempt}-rank{rank}.jsonl").open("x")

    def write(self, epoch: int, position: int, batch: Mapping[str, Any]) -> None:
        record = Record(
            attempt=self.attempt,
            rank=self.rank,
            epoch=epoch,
            position=position,
            ids=batch["sample_ids"].tolist(),
            valid=batch["valid"].tolist(),
            rows=[zlib.crc32(row.contiguous().numpy()) for row in batch["image"]],
        )
        self.file.write(json.dumps(asdict(record)) + "\n")
        self.file.flush()


def read(folder: Path) -> list[Record]:
    """Returns all records of a run, without an incomplete last line of a process that was killed while writing."""
    lines = [
        line for path in sorted(folder.glob("attempt*.jsonl")) for line in path.read_text().splitlines(True)
    ]
    return [Record(**json.loads(line)) for line in lines if line.endswith("\n")]


def note_start(folder: Path, attempt: int, state: Mapping[str, Any]) -> None:
    """Records where an attempt began: the loader's state after resuming."""
    (folder / f"start{attempt}").write_text(json.dumps([state["epoch"], state["position"]]))


def starts(folder: Path) -> dict[int, tuple[int, int]]:
    """Returns the (epoch, position) at which each attempt began."""
    files = {
        int(path.name.removeprefix("start")): json.loads(path.read_text()) for path in folder.glob("start*")
    }
    return {attempt: (epoch, position) for attempt, (epoch, position) in files.items()}


def committed(records: Iterable[Record], starts: Mapping[int, tuple[int, int]]) -> list[Record]:
    """Returns the steps that count: those of each attempt up to the start of a later one, which did the rest again."""
    return [
        record
        for record in records
        if all((record.epoch, record.position) < start for a, start in starts.items() if a > record.attempt)
    ]


def counts(records: Iterable[Record]) -> dict[int, Counter[int]]:
    """Returns, by epoch, how many times each sample id entered a step as a valid row."""
    found: dict[int, Counter[int]] = {}
    for record in records:
        epoch = found.setdefault(record.epoch, Counter())
        epoch.update(id for id, valid in zip(record.ids, record.valid, strict=True) if valid)
    return found
