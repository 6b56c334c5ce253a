"""Runs the parts of the benchmark over contenders, jobs and rounds, and stores each run as soon as it is
done."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from contenders.protocol import REALISTIC, S3, is_bucket

from harness import agree, builds, ceilings, contest, environments, goals, plan
from harness.account import Machine, neighbours
from harness.data import CHECK_SAMPLES, SERVER_OPTIONS, Data, S3Server, data_version, mark_of
from harness.environments import Environment
from harness.stored import Key, Results, machine, write_whole

PARTS = (
    "install",
    "prepare",
    "check",
    "calibrate",
    "rates",
    "steps",
    "memory",
    "resume",
    "ceilings",
    "report",
)

# Parts that run contenders and need their formats.
RUNS = ("check", "calibrate", "rates", "steps", "memory", "resume")

# Batches of a run that calibrates: for warm-up, and measured.
CALIBRATION_BATCHES = (8, 32)

# A failed run is repeated once, because a neighbour may have caused the failure.
TRIES = 2

# Jobs for memory and resuming. The other image jobs differ only in the last step of their work.
SLOW_JOBS = ("pictures-train", "speech")

# The consumer stalls after this number of batches, for this time in seconds.
STALL_STEPS = 20
STALL_S = 6.0


class OutOfTime(Exception):
    """``--at-most`` has passed."""


class Bench:
    def __init__(self, options: argparse.Namespace, results: Results) -> None:
        self.options, self.results = options, results
        self._environments: dict[str, Environment] = {}
        self._sizes: dict[Path, float] = {}
        self._due: list[Key] = []
        self._until = time.monotonic() + 60 * options.at_most if options.at_most else float("inf")
        self._logs = options.cache / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        root = options.cache / "data"
        counts = {"pictures": options.samples, "speech": options.samples}
        kinds = sorted({plan.kind(job) for job in options.jobs})
        self._data = {kind: Data(root, kind, counts[kind]) for kind in kinds}
        self._checked = {kind: Data(root, kind, CHECK_SAMPLES[kind]) for kind in kinds}

    def run(self) -> bool:
        """Returns whether everything that was requested is done."""
        parts: dict[str, Callable[[], None]] = {
            "check": self._check,
            "calibrate": self._calibrate,
            "rates": self._rates,
            "steps": self._steps,
            "memory": self._memory,
            "resume": self._resume,
            "ceilings": self._ceilings,
        }
        content, options = self.results.content, self.options
        self.results.built(builds.fingerprint(options.wheel))
        content["machine"] = machine() | {"cores": options.cores}
        self.results.settle(
            {
                "samples": options.samples,
                "cores": options.cores,
                "warm_up_batches": plan.WARM_UP_BATCHES,
                "measured_batches": plan.MEASURED_BATCHES,
                "last_batches": plan.LAST_BATCHES,
                "least_s": plan.LEAST_S,
                "min_fetched_share": plan.MIN_FETCHED_SHARE,
                "batch_sizes": plan.BATCH_SIZES,
                "order_seed": options.seed,
                "data": data_version(),
                "step_s": plan.STEP_S,
                "s3_realistic": list(SERVER_OPTIONS[REALISTIC]),
                "stall_steps": STALL_STEPS,
                "stall_s": STALL_S,
                "row_limits": agree.ALLOWED,
                "crop_epochs": agree.CROP_EPOCHS,
                "crop_confidence": agree.CONFIDENCE,
                "crop_tolerated": agree.TOLERATED,
            }
        )
        if options.s3_server is not None:
            content["settings"]["s3_server"] = options.s3_server.parent.name.replace("debug", "dev")
        asked = {
            name: getattr(options, name) for name in ("again", "parts", "jobs", "storage", "peers", "rounds")
        }
        self.results.again(options.again, asked)
        try:
            for data in [*self._data.values(), *self._checked.values()]:
                data.make(self._in_time)
            for kind, data in self._data.items():
                content["data"][kind] = data.facts() | {"used": data.used()}
            self.results.write()
            self._install()
            if {"prepare", *RUNS} & set(options.parts):
                self._prepare()
            for part in options.parts:
                if part in parts:
                    parts[part]()
        except OutOfTime:
            self.results.write()
            return False
        if options.again:
            self.results.finished()
        return True

    def _install(self) -> None:
        for peer in self.options.peers:
            name = plan.environment(peer)
            if name not in self._environments:
                self._in_time()
                self._environments[name] = environments.install(
                    name, self.options.cache / "environments", self.options.wheel
                )
            found = self._environments[name]
            program = builds.program_hash(peer, name)
            facts = {**plan.facts(peer), "error": found.error, "program": program}
            if found.error is None:
                installed = self.results.content["environments"][name] = found.installed()
                facts["versions"] = {package: installed[package] for package in found.asked_for()}
            else:
                print(f"{peer} cannot be installed: {found.error}", flush=True)
            if self.results.described(peer, facts, agree.REFERENCES):
                print(f"the program of {peer} has changed: its figures are measured again", flush=True)
        self.results.write()

    def _able(self, job: str, storage: str, mode: str = "steady") -> list[str]:
        """Returns the contenders that are installed, take part in the job, and have the data that they read."""
        able = []
        for peer in self.options.peers:
            if self._environments[plan.environment(peer)].error or plan.why_not(
                plan.facts(peer), job, storage, mode
            ):
                continue
            prepared = self.results.content["prepared"].get(f"{peer} {plan.kind(job)}", {})
            if not prepared.get("error"):
                able.append(peer)
        return able

    def _in_time(self) -> None:
        if time.monotonic() > self._until:
            raise OutOfTime

    def _done(self, facts: dict[str, Any] | None) -> bool:
        return self.results.is_done(facts, bool(self.options.again))

    def _job(self, peer: str, job: str, storage: str, mode: str, data: Data, **more: Any) -> dict[str, Any]:
        return {
            "job": job,
            "storage": storage,
            "mode": mode,
            "uris": data.uris(storage),
            "native": data.native(storage, peer),
            "batch_size": plan.BATCH_SIZES[job],
            "cores": self.options.cores,
            "workers": plan.workers(self.results, peer, job, storage, self.options.cores),
            "samples": data.used(),
            **more,
        }

    def _sample_bytes(self, peer: str, data: Data) -> float:
        """Returns the bytes per sample of the Parquet files that a contender reads which reports its reads
        (ours): its own format if it has one."""
        folder = Path(data.native("local", peer))
        if plan.contender(peer).layout != "native" or not folder.is_dir():
            folder = Path(data.uris("local")["parquet"])
        if folder not in self._sizes:
            self._sizes[folder] = data.sample_bytes(folder)
        return self._sizes[folder]

    def _once(
        self, peer: str, job: dict[str, Any], server: S3Server | None = None, left: int | None = None
    ) -> dict[str, Any]:
        """Returns the figures of one run, or the error of the last try. Given the number of tries ``left``,
        only the first is made when time is out; the error then states how many are left. Otherwise all belong
        to the run that was begun."""
        tries = TRIES if left is None else left
        found: dict[str, Any] = {}
        for tried in range(tries):
            if tried and left is not None and time.monotonic() > self._until:
                return found | {"left": tries - tried}
            found = self._try(peer, job, server)
            if TRIES - tries + tried:
                found["tries"] = TRIES - tries + tried + 1
            if "error" not in found:
                break
        return found

    def _try(self, peer: str, job: dict[str, Any], server: S3Server | None) -> dict[str, Any]:
        begun = time.monotonic()
        children = environments.for_children(self.options.cache)
        served = 0.0
        if server is not None:
            children |= server.environment()
            job = job | {"endpoint": server.endpoint}
            served = server.cpu_s()
        log = self._logs / f"{peer}-{job['job']}-{job['storage']}-{job['mode']}.log"
        python = self._environments[plan.environment(peer)].python
        found: dict[str, Any] = {"workers": job["workers"], "began": time.strftime("%FT%TZ", time.gmtime())}
        before, own = Machine.now(), time.process_time()
        spent = 0.0
        try:
            outcome = contest.run(peer, python, job, children, log)
            spent = outcome.account.samples[-1].cpu_s
            found |= contest.figures(job, outcome, plan.contender(peer).tensors)
        except contest.Failed as failure:
            found["error"] = str(failure)
        if server is not None:
            found["server_cpu_s"] = server.cpu_s() - served
        spent += found.get("server_cpu_s", 0.0) + time.process_time() - own
        found |= {"took_s": time.monotonic() - begun, "made": time.time()}
        return found | neighbours(before, Machine.now(), spent, os.cpu_count() or 1)

    def _prepare(self) -> None:
        for peer in self.options.peers:
            described = plan.contender(peer)
            if described.prepare is None or self._environments[plan.environment(peer)].error:
                continue
            for kind in self._data:
                jobs = [job for job in self.options.jobs if plan.kind(job) == kind and job in described.jobs]
                if jobs:
                    self._prepare_one(peer, jobs[0], kind)

    def _prepare_one(self, peer: str, job: str, kind: str) -> None:
        kept, name = self.results.content["prepared"], f"{peer} {kind}"
        made_by = f"{data_version()} {builds.program_hash(peer, plan.environment(peer))}"
        if peer in goals.OURS.values():
            made_by += f" {builds.content_hash(self.options.wheel)}"
        if "error" in kept.get(name, {}) and kept[name].get("made_by") == made_by and self._done(kept[name]):
            return
        for data in (self._checked[kind], self._data[kind]):
            place = Path(data.native("local", peer))
            done = place.with_name(f"{place.name}.json")
            mark = mark_of(done)
            if mark.get("made_by") == made_by and self._done(mark):
                if data is self._data[kind]:
                    kept[name] = {"seconds": mark["seconds"]}
                continue
            self._in_time()
            done.unlink(missing_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            print(f"{peer}: writing {data.used():,} {kind} in its own format", flush=True)
            begun = time.monotonic()
            found = self._once(peer, self._job(peer, job, "local", "prepare", data))
            seconds = time.monotonic() - begun
            if "error" in found:
                print(f"  failed: {found['error']}", flush=True)
                kept[name] = {"error": found["error"], "made": found["made"], "made_by": made_by}
                break
            write_whole(done, json.dumps({"seconds": seconds, "made": found["made"], "made_by": made_by}))
            kept[name] = {"seconds": seconds}
        self.results.write()

    def _check(self) -> None:
        for job in self.options.jobs:
            first = agree.REFERENCES[job]
            able = self._able(job, "local", "check")
            if first not in able:
                print(f"check of {job}: its reference {first} is not one of the peers", flush=True)
                continue
            kept = self.results.content["agreement"]
            missing = [peer for peer in able if not self._done(kept.get(peer, {}).get(job))]
            if not missing:
                continue
            self._in_time()
            with tempfile.TemporaryDirectory(prefix="feedstock-peers-") as folder:
                reference = self._outputs(first, job, Path(folder), plan.REFERENCE_SEED)
                if isinstance(reference, str):
                    print(f"check of {job}: {first} failed: {reference}", flush=True)
                    continue
                for place, peer in enumerate(missing):
                    if place:  # at least one contender follows the reference's outputs
                        self._in_time()
                    found = self._compared(peer, job, Path(folder), reference)
                    if isinstance(found, str):
                        print(
                            f"check of {job}: {peer} failed (--again failed repeats it): {found}", flush=True
                        )
                        kept.setdefault(peer, {})[job] = {"error": found, "made": time.time()}
                        self.results.write()
                        continue
                    kept.setdefault(peer, {})[job] = found | {"made": time.time()}
                    told = "agrees" if found["agrees"] else f"DIFFERS: {found['note']}"
                    if found["difference"] is not None:
                        told += f"; difference {found['difference']:.3f}, worst {found['worst']:.3f}"
                        told += f" ({found['worst_name']}), limit {found['limit']:.3f}"
                    print(f"check of {job}: {peer} {told}", flush=True)
                    self.results.write()

    def _compared(self, peer: str, job: str, folder: Path, reference: agree.Rows) -> dict[str, Any] | str:
        """Returns a contender's agreement. If it differs, it is checked once more with other random crops.
        Returns its error if it had no outputs at all."""
        found: dict[str, Any] | str = ""
        for tried in range(TRIES):
            rows = self._outputs(peer, job, folder, plan.CHECK_SEED + tried)
            if isinstance(rows, str):
                found = found or rows
                continue
            compared = agree.compare(job, reference, rows)
            found = compared.to_json() | {"tries": tried + 1}
            if compared.agrees:
                break
        return found

    def _outputs(self, peer: str, job: str, folder: Path, seed: int) -> agree.Rows | str:
        """Returns a contender's rows of the small data set (for random crops: their means), or its error."""
        output = folder / f"{peer}.npz"
        data = self._checked[plan.kind(job)]
        used = data.used()
        # One worker, so that no worker's share is smaller than a batch; batch sizes that leave no remainder.
        more = {
            "output": str(output),
            "workers": 1,
            "batch_size": next(size for size in range(16, 0, -1) if used % size == 0),
            "epochs": 1 if job in agree.ALLOWED else agree.CROP_EPOCHS,
            "seed": seed,
        }
        found = self._once(peer, self._job(peer, job, "local", "check", data, **more))
        if "error" in found:
            return str(found["error"])
        return agree.load(output)

    def _calibrate(self) -> None:
        for storage in self.options.storage:
            with self._server(storage) as server:
                for job in dict.fromkeys(plan.calibrated_on(job) for job in self.options.jobs):
                    for peer in self._able(job, storage):
                        self._calibrate_one(peer, job, storage, server)

    def _calibrate_one(self, peer: str, job: str, storage: str, server: S3Server | None) -> None:
        """Stores every short run as it ends, so that the next call of the command resumes after it."""
        kept = self.results.content["calibration"].setdefault(peer, {})
        name = f"{job} {storage}"
        if "workers" in kept.get(name, {}) and self._done(kept[name]):
            return
        choices = plan.numbers(peer, self.options.cores, storage)
        begun = kept.get(name, {})
        if begun.get("choices") != choices or "workers" in begun:
            kept[name] = begun = {"choices": choices, "tried": {}, "errors": {}}
        tried: dict[str, list[float]] = begun["tried"]
        errors: dict[str, list[str]] = begun["errors"]
        warm_up, measured = (batches * plan.BATCH_SIZES[job] for batches in CALIBRATION_BATCHES)
        for workers in choices if len(choices) > 1 else []:
            if storage == REALISTIC and not tried.get(str(workers)) and plan.is_past_best(tried):
                break
            rates, failed = tried.setdefault(str(workers), []), errors.setdefault(str(workers), [])
            while len(rates) < self.options.calibrations and len(failed) < TRIES:
                self._in_time()
                more = {"warm_up": warm_up, "measured": measured, "workers": workers}
                made = self._job(peer, job, storage, "steady", self._data[plan.kind(job)], **more)
                found = self._try(peer, made, server)
                if "rate" in found:
                    rates.append(found["rate"])
                else:
                    failed.append(found["error"])
                self.results.write()
        kept[name] = plan.best_choice(choices, tried, errors) | {"made": time.time()}
        told = ", ".join(f"{workers}: {rate:,.0f}/s" for workers, rate in kept[name]["rates"].items())
        told = "; ".join([told or "no choice", *kept[name].get("failed", [])])
        print(f"calibration of {peer}, {job} {storage}: {kept[name]['workers']} workers ({told})", flush=True)
        self.results.write()

    @contextmanager
    def _server(self, storage: str) -> Iterator[S3Server | None]:
        if not is_bucket(storage):
            yield None
            return
        with ExitStack() as stack:
            data = list(self._data.values())
            described = {peer: plan.contender(peer) for peer in plan.PEERS}
            natives = [
                peer for peer, one in described.items() if one.layout == "native" and S3 in one.storages
            ]
            root = self.options.cache / "s3"
            yield stack.enter_context(S3Server(self.options.s3_server, root, data, natives, storage))

    def _each(
        self, mode: str, jobs: list[str], storages: list[str]
    ) -> Iterator[tuple[Key, int, S3Server | None]]:
        """Yields the runs to be done, in turns, each with its position in its round."""
        due: dict[str, list[tuple[Key, int]]] = {}
        for storage in storages:
            due[storage] = []
            for job in jobs:
                what = f"{self.options.seed} {job} {storage} {mode}"
                for turn in plan.turns(self._able(job, storage, mode), self.options.rounds, what):
                    key = Key(job, storage, mode, turn.peer, turn.round)
                    if not self._done(self.results.run(key)):
                        due[storage].append((key, turn.place))
        self._due = [key for runs in due.values() for key, _ in runs]
        for storage, runs in due.items():
            if not runs:
                continue
            self._in_time()
            with self._server(storage) as server:
                for key, place in runs:
                    self._in_time()
                    yield key, place, server

    def _left(self, key: Key) -> int:
        """Returns the number of tries that a run has left: all, unless time was out after the first one."""
        before = self.results.run(key)
        return int(before.get("left", TRIES)) if before else TRIES

    def _keep(self, key: Key, place: int, found: dict[str, Any], told: str) -> None:
        self.results.add(key, {"place": place, **found})
        self._due.remove(key)
        told = str(found.get("error") or told)
        beside = f"load {found['load_before']:.1f}, others {found['others_cores']:.2f} cores"
        where = f"{key.mode} {key.job} {key.storage}, round {key.round} of {self.options.rounds}"
        print(f"{where}: {key.peer}: {told} ({beside}, stolen {found['steal_share']:.1%})", flush=True)
        left_s = plan.time_left(self.results, self._due)
        if left_s:
            print(f"  {len(self._due)} runs of {key.mode} left, about {left_s / 60:.0f} min", flush=True)

    def _rates(self) -> None:
        self._deliver("steady", self.options.jobs, self.options.storage)

    def _steps(self) -> None:
        jobs = [job for job in self.options.jobs if job in plan.STEP_JOBS]
        self._deliver("steps", jobs, [storage for storage in self.options.storage if storage == REALISTIC])

    def _deliver(self, mode: str, jobs: list[str], storages: list[str]) -> None:
        """Measures how fast batches come: for a consumer that computes nothing, or (``steps``) one that
        sleeps after each batch."""
        for key, place, server in self._each(mode, jobs, storages):
            data = self._data[plan.kind(key.job)]
            warm_up, measured = plan.window(key.job, data.used())
            more: dict[str, Any] = {"warm_up": warm_up, "measured": measured}
            more["least_s"] = plan.LEAST_S if key.storage == "local" else 0.0
            more["step_s"] = plan.STEP_S if mode == "steps" else 0.0
            if key.peer in goals.ALSO_OURS:
                more["sample_bytes"] = self._sample_bytes(key.peer, data)
            job = self._job(key.peer, key.job, key.storage, mode, data, **more)
            found = self._once(key.peer, job, server, self._left(key))
            told = ""
            if "error" not in found:
                told = (
                    f"{found['rate']:,.0f}/s, {found['cpu_s_per_1000']:.2f} CPU-s per 1000, first batch "
                    f"{found['first_batch_s']:.2f} s, {found['peak_bytes'] / 2**20:,.0f} MiB"
                )
                if "wait_share" in found:
                    told += f", waits for {found['wait_share']:.1%} of the time"
                if "fetched_share" in found:
                    few = "ONLY " if found["fetched_share"] < plan.MIN_FETCHED_SHARE else ""
                    told += f", read {few}{found['fetched_share']:.0%} of it in that time"
            self._keep(key, place, found, told)

    def _memory(self) -> None:
        jobs = [job for job in self.options.jobs if job in SLOW_JOBS]
        for key, place, server in self._each("stall", jobs, ["local"]):
            more = {"steps": STALL_STEPS, "pause": STALL_S}
            job = self._job(key.peer, key.job, key.storage, "stall", self._data[plan.kind(key.job)], **more)
            found = self._once(key.peer, job, server, self._left(key))
            told = ""
            if "error" not in found:
                told = ", ".join(
                    f"{name} {found[f'{name}_bytes'] / 2**20:,.0f} MiB"
                    for name in ("rest", "running", "stalled")
                )
            self._keep(key, place, found, told)

    def _resume(self) -> None:
        jobs = [job for job in self.options.jobs if job in SLOW_JOBS]
        with tempfile.TemporaryDirectory(prefix="feedstock-peers-") as folder:
            for key, place, server in self._each("resume", jobs, ["local"]):
                data = self._data[plan.kind(key.job)]
                output = Path(folder) / f"{key.peer}-{key.job}"
                more = {"steps": data.used() // plan.BATCH_SIZES[key.job] // 2, "output": str(output)}
                found: dict[str, Any] = {}
                if not output.is_file():
                    found = self._once(
                        key.peer, self._job(key.peer, key.job, "local", "save", data, **more), server
                    )
                if "error" not in found:
                    found = self._once(
                        key.peer, self._job(key.peer, key.job, "local", "resume", data, **more), server
                    )
                told = ""
                if "error" not in found:
                    told = f"{found['resume_s']:.2f} s, {'right' if found['right'] else 'WRONG'} batch"
                self._keep(key, place, found, told)

    def _ceilings(self) -> None:
        kept = self.results.content["ceilings"]
        made = self.results.content.get("ceilings_made", 0.0)
        if not kept or not self._done({"made": made}):
            self._in_time()
            print("ceilings: bare codecs on one core", flush=True)
            speech = self._data.get("speech")
            clips, seconds = None, 0.0
            if speech is not None:
                facts = speech.facts()
                clips, seconds = speech.folder / "folder" / "en" / "clips", float(str(facts["audio_seconds"]))
                seconds /= float(str(facts["samples"]))
            profile = builds.fingerprint(self.options.wheel)["profile"]
            kept.update(ceilings.measure(profile, clips, seconds))
            self.results.content["ceilings_made"] = time.time()
            self.results.write()
        for name, value in kept.items():
            print(f"ceiling: {name}: {value:,.0f}/s a core", flush=True)
