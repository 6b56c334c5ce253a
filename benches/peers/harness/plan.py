"""Plans the runs: contenders, jobs, rounds in a random order, and the workers that the calibration found."""

from __future__ import annotations

import importlib
import random
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from contenders.protocol import PICTURES, REALISTIC, S3, SPEECH, Contender, is_bucket
from contenders.protocol import STORAGES as STORAGES

from harness.peers import PEERS as PEERS
from harness.stored import Key, Results

JOBS = PICTURES + SPEECH

# Seeds of checks: the reference's random crops differ from the contenders'.
REFERENCE_SEED, CHECK_SEED = 1001, 7

# The other image jobs differ only in the last step of their work, so they use the workers that this job found
# best.
CALIBRATED_ON = "pictures-train"

# Workers to try per core where answers come late: a worker that requests one sample at a time waits for most
# of the time, and its wait takes no CPU. Of an epoch's 93 batches, each of 32 workers makes about three.
# Their batches are not held in buffers: the consumer takes each as soon as it is made.
LATE_NUMBERS = (1, 2, 4, 8, 16)
MOST_LATE_WORKERS = 32

# Larger numbers are not tried after one with a rate below this share of the best rate.
PAST_BEST = 0.9

# The step of a consumer that computes, for a batch of 64 images: a trainer that takes 1,280 images a second.
# Other image jobs differ only in the last step of their work.
STEP_S = 0.05
STEP_JOBS = ("pictures-train",)

BATCH_SIZES = {"pictures-train": 64, "pictures-eval": 64, "pictures-f32": 64, "speech": 32}


def contender(peer: str) -> Contender:
    made: Contender = importlib.import_module(f"contenders.{peer}").CONTENDER
    return made


def environment(peer: str) -> str:
    return contender(peer).environment or peer


def kind(job: str) -> str:
    return "speech" if job in SPEECH else "pictures"


def facts(peer: str) -> dict[str, Any]:
    """Returns what results store of a contender's description, so that reports need nothing else."""
    described = contender(peer)
    return {
        "title": described.title,
        "reads": described.reads or described.layout,
        "tensors": described.tensors,
        "jobs": list(described.jobs),
        "storages": list(described.storages),
        "modes": list(described.modes),
        "resume": described.resume,
        "guidance": list(described.guidance),
        "cannot": described.cannot,
    }


def why_not(described: Mapping[str, Any], job: str, storage: str, mode: str = "steady") -> str | None:
    """Returns why a contender with these facts does not take part; None if it does."""
    cannot: Mapping[str, str] = described["cannot"]
    if described.get("modes") and mode not in described["modes"]:
        return "this way of using it is not measured for that"
    if mode in ("save", "resume") and not described["resume"]:
        return cannot.get("resume", "it has no state to save")
    if job not in described["jobs"]:
        other = "pictures" if tuple(described["jobs"]) == SPEECH else "speech"
        return cannot.get(job, f"this way of using it is not for {other}")
    kind_of_storage = S3 if is_bucket(storage) else storage
    if kind_of_storage not in described["storages"]:
        return cannot.get(kind_of_storage, f"it does not read {kind_of_storage}")
    return None


def numbers(peer: str, cores: int, storage: str) -> list[int]:
    """Returns the numbers of workers to try."""
    shares = contender(peer).numbers
    if storage == REALISTIC and len(shares) > 1:
        most = max(cores, MOST_LATE_WORKERS)
        return sorted({min(most, cores * share) for share in LATE_NUMBERS})
    return sorted({max(1, round(cores * share)) for share in shares})


def is_past_best(tried: Mapping[str, list[float]]) -> bool:
    """Returns whether the last number of workers was so much slower than the best one that larger numbers
    need not be tried."""
    rates = [statistics.median(found) for found in tried.values() if found]
    return len(rates) > 1 and rates[-1] < PAST_BEST * max(rates)


def calibrated_on(job: str) -> str:
    """Returns the job whose short runs choose the workers of this one."""
    return CALIBRATED_ON if job in PICTURES else job


def calibrated(results: Results, peer: str, job: str, storage: str) -> dict[str, Any] | None:
    """Returns what was found best for this job and storage; None until all choices were tried."""
    of_peer: dict[str, Any] = results.content["calibration"].get(peer, {})
    found: dict[str, Any] | None = of_peer.get(f"{calibrated_on(job)} {storage}")
    return found if found is not None and "workers" in found else None


def workers(results: Results, peer: str, job: str, storage: str, cores: int) -> int:
    """Returns what the calibration found best, else one per core."""
    found = calibrated(results, peer, job, storage)
    return int(found["workers"]) if found else cores


def best_choice(
    choices: list[int], tried: dict[str, list[float]], errors: dict[str, list[str]]
) -> dict[str, Any]:
    """Returns the workers whose runs have the best median. A choice that failed in all its tries does not
    count."""
    rates = {workers: statistics.median(found) for workers, found in tried.items() if found}
    failed = [f"{workers}: {told[-1]}" for workers, told in errors.items() if told and workers not in rates]
    best = max(rates, key=lambda workers: rates[workers]) if rates else str(choices[-1])
    kept: dict[str, Any] = {"workers": int(best), "choices": choices, "rates": rates, "tried": tried}
    if failed:
        kept["failed"] = failed
    if failed and not rates:
        kept["error"] = failed[-1]
    return kept


# A rate is measured in the middle of the first epoch, from local files and from S3. It warms up for more
# batches than any contender makes ahead while it starts (DataLoaders 2 per worker, Ray 256 MiB); otherwise
# the rate would be that of emptying a buffer. It ends before the last batches, after which workers have
# nothing left to do.
WARM_UP_BATCHES = 28
MEASURED_BATCHES = 56
LAST_BATCHES = 8

# A fast contender finishes in a second or two, which is too short on a machine that is also used by others.
# It repeats the measurement, into its next epochs, as often as one begins within this time. From S3 it does
# not: in a second epoch, peers have parts on the local disk.
LEAST_S = 3.5

# Minimum share of the delivered bytes that a loader which reports its reads must have read while its rate was
# measured.
MIN_FETCHED_SHARE = 0.9


def window(job: str, samples: int) -> tuple[int, int]:
    """Returns the samples for warm-up and the samples that are measured; in a small epoch, in the same
    proportion."""
    whole = WARM_UP_BATCHES + MEASURED_BATCHES + LAST_BATCHES
    share = min(1.0, samples / BATCH_SIZES[job] / whole)
    warm_up, measured = (max(1, int(batches * share)) for batches in (WARM_UP_BATCHES, MEASURED_BATCHES))
    return warm_up * BATCH_SIZES[job], measured * BATCH_SIZES[job]


def reported_storages(results: Results) -> list[str]:
    """Returns the storages that reports show. Results from before a storage was added do not mention it."""
    measured = {run["storage"] for run in results.content["runs"]}
    return [storage for storage in STORAGES if storage != REALISTIC or storage in measured]


def time_left(results: Results, keys: list[Key]) -> float | None:
    """Returns the seconds that these runs will take, estimated from similar ones: of the same contender, else
    of all; None before any of them."""
    took: dict[tuple[str, ...], list[float]] = {}
    for run in results.content["runs"]:
        if "took_s" in run:
            for like in _likeness(Key(*(run[part.name] for part in fields(Key)))):
                took.setdefault(like, []).append(float(run["took_s"]))
    means = {like: sum(found) / len(found) for like, found in took.items()}
    guesses = [next((means[like] for like in _likeness(key) if like in means), None) for key in keys]
    known = [guess for guess in guesses if guess is not None]
    return sum(known) / len(known) * len(keys) if known else None


def _likeness(key: Key) -> tuple[tuple[str, ...], ...]:
    whole = (key.mode, key.job, key.storage, key.peer)
    return whole, (key.mode, kind(key.job), key.peer), whole[:3], whole[:2], whole[:1]


@dataclass(frozen=True)
class Turn:
    round: int
    peer: str
    place: int  # in its round


def turns(peers: list[str], rounds: int, seed: str) -> Iterator[Turn]:
    """Yields rounds, each in its own random order; the same seed makes the same orders."""
    for number in range(1, rounds + 1):
        order = sorted(peers)
        random.Random(f"{seed} {number}").shuffle(order)
        for place, peer in enumerate(order):
            yield Turn(number, peer, place)
