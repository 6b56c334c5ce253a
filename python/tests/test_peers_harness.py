"""The arithmetic of benches/peers: no peer is installed."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benches" / "peers"))

from contenders import pictures, protocol
from harness import __main__ as command
from harness import (
    account,
    agree,
    alone,
    bench,
    builds,
    ceilings,
    contest,
    data,
    environments,
    goals,
    method,
    page,
    plan,
    plots,
    stored,
    table,
)


def sample(at: float, cpu_s: float, memory: account.Memory | None = None) -> account.Sample:
    return account.Sample(at, cpu_s, memory, 1, 1)


class TestFigures:
    def test_median_and_spread(self) -> None:
        found = stored.figure([90.0, 110.0, 100.0])
        assert found == stored.Figure(100.0, 90.0, 110.0, 3)
        assert found.spread == pytest.approx(0.2)
        assert stored.figure([]) is None

    def test_cpu_time_lies_between_samples(self) -> None:
        samples = [sample(1.0, 0.0), sample(2.0, 1.0), sample(3.0, 3.0)]
        assert account.cpu_at(samples, 1.5) == pytest.approx(0.5)
        assert account.cpu_at(samples, 2.25) == pytest.approx(1.5)
        assert account.cpu_at(samples, 0.0) == 0.0
        assert account.cpu_at(samples, 9.0) == 3.0

    def test_peak_memory_is_the_most_that_was_read(self) -> None:
        samples = [
            sample(1.0, 0, account.Memory(500, 90)),
            sample(2.0, 0),
            sample(3.0, 0, account.Memory(600, 10)),
            sample(4.0, 0, account.Memory(9999, 9999)),
        ]
        assert account.peak_memory(samples, 0.0, 3.5) == account.Memory(600, 90)
        unread = account.peak_memory(samples, 1.5, 2.5)
        assert unread is None
        with pytest.raises(contest.Failed, match="its memory \\(rest\\) was not read"):
            contest.sizes("rest", unread)

    def test_mapped_files_are_not_the_contenders_own_memory(self) -> None:
        said = "55-66 ---p 0 00:00 0 [rollup]\nRss: 999 kB\nPss: 70 kB\nPss_Dirty: 3 kB\nPss_Anon: 10 kB\n"
        said += "Pss_File: 40 kB\nPss_Shmem: 20 kB\n"
        assert account.parse_rollup(said) == account.Memory(30 << 10, 40 << 10)

    def test_neighbours_are_what_the_machine_did_besides(self) -> None:
        ticks = account.TICKS
        before = account.Machine.read(10.0, 0.5, f"cpu  {5 * ticks} 0 {ticks} 900 7 0 0 0 0 0\ncpu0 1 2 3\n")
        after = account.Machine.read(
            20.0, 1.5, f"cpu  {13 * ticks} 0 {3 * ticks} 950 9 0 0 {2 * ticks} 0 0\n"
        )
        found = account.neighbours(before, after, own_s=7.0, cores=2)
        assert found["others_cores"] == pytest.approx(0.3)  # 10 s busy, 7 of them its own, of 10 s
        assert found["steal_share"] == pytest.approx(0.1)
        assert (found["load_before"], found["load_after"]) == (0.5, 1.5)

    def known(self) -> account.Account:
        class Known(account.Account):
            def __init__(self) -> None:
                self.samples = [sample(0.0, 0.0), sample(20.0, 40.0)]

        return Known()

    def test_rate_counts_samples_behind_the_warm_up(self) -> None:
        # A slow start up to 2 s, then 64 rows every 0.1 s up to 8 s.
        steps = [{"at": 0.0, "n": 64}, {"at": 2.0, "n": 64}]
        steps += [{"at": 2.0 + (number + 1) / 10, "n": 64} for number in range(60)]
        found = contest.steady(steps, self.known(), warm_up=128, measured=60 * 64)
        assert found["rate"] == pytest.approx(640)
        assert (found["samples"], found["batches"]) == (60 * 64, 60)
        assert found["warm_up_s"] == pytest.approx(2.0)
        assert found["cpu_s_per_1000"] == pytest.approx(12.0 / (60 * 64) * 1000)
        assert found["cores_used"] == pytest.approx(2.0)

    def test_rate_of_bursts_is_that_of_the_whole_epoch(self) -> None:
        # Whoever hands out an epoch at once after making it for 5 s makes no more than an epoch in 5 s.
        steps = [{"at": 5.0 * (1 + number // 40), "n": 32} for number in range(40 + 10)]
        found = contest.steady(steps, self.known(), warm_up=10 * 32, measured=40 * 32)
        assert found["rate"] == pytest.approx(40 * 32 / 5)

    def test_batches_may_be_of_any_size(self) -> None:
        steps = [{"at": float(number), "n": size} for number, size in enumerate([50, 20, 30, 40, 35])]
        assert contest.steady(steps, self.known(), warm_up=64, measured=96)["samples"] == 105

    @pytest.mark.parametrize("batches", [1, 4])
    def test_too_few_samples_have_no_rate(self, batches: int) -> None:
        steps = [{"at": 1.0 + number, "n": 64} for number in range(batches)]
        with pytest.raises(contest.Failed, match=f"only {64 * batches} samples came of 640"):
            contest.steady(steps, self.known(), warm_up=128, measured=512)

    def test_the_middle_of_an_epoch_is_measured(self) -> None:
        assert plan.window("pictures-train", 6000) == (28 * 64, 56 * 64)
        assert plan.window("speech", 1_000_000) == (28 * 32, 56 * 32)
        warm_up, measured = plan.window("speech", 736)  # a quarter
        assert (warm_up, measured) == (7 * 32, 14 * 32)
        assert warm_up + measured < 736

    def test_bytes_read_while_measured_stand_beside_those_consumed(self) -> None:
        events = [
            {"event": "fetched", "at": 1.0, "bytes": 300},
            {"event": "fetched", "at": 2.0, "bytes": 1200},
        ]
        found = contest.fetched(events, 1000.0)
        assert found == {"fetched_bytes": 900, "consumed_bytes": 1000, "fetched_share": pytest.approx(0.9)}
        assert contest.fetched([], 1000.0) == {}


class TestAccount:
    @pytest.mark.parametrize("grouped", [True, False])
    def test_counts_children_and_what_has_ended(self, grouped: bool) -> None:
        group = account.Group.make(f"feedstock-test-{os.getpid()}") if grouped else None
        if grouped and group is None:
            pytest.skip("no control group may be made here")
        burn = "import time; end = time.process_time() + {}\nwhile time.process_time() < end: pass\n"
        program = (
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn.format(0.4)!r}])\n"
            + burn.format(0.5)
        )
        begun = time.monotonic()
        process = subprocess.Popen([sys.executable, "-c", program], preexec_fn=group.adopt if group else None)
        source = group or account.Tree(process.pid)
        counted = account.Account(source, 0.01)
        process.wait(30)
        counted.close()
        account.end_all(source)
        assert counted.samples[-1].cpu_s >= (
            0.85 if grouped else 0.7
        )  # a tree misses what ends between samples
        assert max(found.processes for found in counted.samples) >= 2
        found = counted.memory(begun, time.monotonic())
        assert found.own_bytes > 2 << 20
        assert found.file_bytes > 0  # the interpreter's own, shared with others that run


def test_help_can_be_printed() -> None:
    assert "--at-most" in command.parser().format_help()


class TestRunning:
    def test_a_failure_is_its_errors_line(self) -> None:
        text = "Traceback (most recent call last):\nValueError: no such crop\n[worker] exiting\n"
        assert contest.last_line(text) == "ValueError: no such crop"
        assert contest.last_line("one\n\ntwo\n") == "two"
        assert contest.last_line("") == ""

    def test_a_job_is_read_as_the_harness_wrote_it(self, tmp_path: Path) -> None:
        job = protocol.Job("speech", "s3", "steady", {"folder": "s3://x"}, "", 32, 2, 4, 100, measured=15)
        path = tmp_path / "job.json"
        path.write_text(json.dumps(dataclasses.asdict(job)))
        assert protocol.Job.read(str(path)) == job
        assert job.speech
        assert job.remote

    def test_events_end_while_the_pipe_is_held_open(self) -> None:
        reading, writing = os.pipe()
        events: list[dict[str, Any]] = []
        reader = threading.Thread(target=contest._read, args=(reading, events))
        reader.start()
        os.write(writing, b'{"event": "first", "at": 1}\n{"event": "end", "at": 2}\n')
        reader.join(5.0)
        assert not reader.is_alive()
        assert [event["event"] for event in events] == ["first", "end"]
        os.close(writing)

    @pytest.mark.parametrize(("least_s", "batches"), [(0.0, 5), (3.0, 5), (4.0, 8), (6.5, 11)])
    def test_who_is_fast_does_it_again(
        self, monkeypatch: pytest.MonkeyPatch, least_s: float, batches: int
    ) -> None:
        told: list[str] = []

        class Told:
            def tell(self, event: str, at: float | None = None, **facts: Any) -> None:
                told.append(event)

        seconds = itertools.count(1.0)
        monkeypatch.setattr(protocol.time, "monotonic", lambda: next(seconds))
        endless = itertools.repeat(protocol.Batch(np.zeros((10, 4)), [0]))
        job = protocol.Job("speech", "local", "steady", {}, "", 10, 2, 2, 30, 20, 30, least_s)
        protocol._steady(job, protocol.Loader(endless, fetched=lambda: 1), Told())  # type: ignore[arg-type]
        steps = [event for event in told if event != "fetched"]
        assert len(steps) == batches
        assert [place for place, event in enumerate(told) if event == "fetched"] == [2, batches + 1]

    def test_contenders_are_described(self) -> None:
        for peer in plan.PEERS:
            described = plan.contender(peer)
            assert described.guidance, peer
            assert (environments.REQUIREMENTS / f"{plan.environment(peer)}.txt").is_file(), peer
            assert described.resume or "resume" in described.cannot, peer
            assert "s3" in described.storages or "s3" in described.cannot, peer
            assert described.tensors in goals.OURS, peer

    def test_whose_tensors_a_batch_is(self) -> None:
        class Shared(np.ndarray[Any, Any]):
            """As Grain's."""

        assert protocol.made_of(np.zeros(3)) == "numpy"
        assert protocol.made_of(np.zeros(3).view(Shared)) == "numpy"
        assert protocol.made_of([1]) == "builtins"

    def test_ours_stand_beside_their_own_kind(self) -> None:
        for tensors, ours in goals.OURS.items():
            assert plan.contender(ours).tensors == tensors

    def test_batches_are_what_the_job_asks_for(self) -> None:
        batch = {"shape": [64, 224, 224, 3], "dtype": "uint8", "tensors": "torch"}
        assert contest.unlike("pictures-train", "torch", batch) is None
        assert (
            contest.unlike("speech", "numpy", {"shape": [7, 99, 80], "dtype": "float32", "tensors": "numpy"})
            is None
        )
        assert "[3, 224, 224]" in str(contest.unlike("pictures-f32", "torch", batch))
        assert "uint8" in str(contest.unlike("pictures-train", "torch", {**batch, "dtype": "float32"}))
        assert "[224, 224]" in str(
            contest.unlike("pictures-train", "torch", {**batch, "shape": [64, 224, 224]})
        )
        assert "not of numpy" in str(contest.unlike("pictures-train", "numpy", batch))

    def test_rounds_are_interleaved_in_random_orders(self) -> None:
        peers = list("abcdefg")
        turns = list(plan.turns(peers, 5, "7 speech local"))
        assert [turn.round for turn in turns] == [number for number in range(1, 6) for _ in peers]
        orders = ["".join(turn.peer for turn in turns[at : at + 7]) for at in range(0, 35, 7)]
        assert all(sorted(order) == peers for order in orders)
        assert len(set(orders)) == 5
        assert [turn.place for turn in turns[:7]] == list(range(7))
        assert list(plan.turns(peers[::-1], 5, "7 speech local")) == turns
        assert list(plan.turns(peers, 5, "8 speech local")) != turns

    def test_workers_to_try(self) -> None:
        assert plan.numbers("torch_pil", 2) == [1, 2, 4]
        assert plan.numbers("torch_pil", 1) == [1, 2]
        assert plan.numbers("feedstock", 2) == [2]


def crops(
    seed: int,
    spread: float = 12.0,
    shift: float = 0.0,
    deviation: float = 0.0,
    corner: float = 0.0,
    flipped: float = 0.5,
    swapped: bool = False,
) -> dict[str, Any]:
    """Facts of 16 crops of each of 128 pictures, whose own means and slopes are the same for every seed."""
    own = np.random.default_rng(0)
    means, slopes = own.normal(126, 30, 128), own.normal(0, 4, 128)
    noise = np.random.default_rng(seed)
    found = {}
    across = np.tile(np.linspace(-1.0, 1.0, 8), 8)
    for name, (mean, slope) in enumerate(zip(means, slopes, strict=True)):
        of_crops = noise.normal(mean + shift, spread, 16)
        deviations = noise.normal(40.0 + deviation, 5.0, 16)
        grid = of_crops[:, None] + noise.normal(0.0, 8.0, (16, 64))
        grid += np.where(noise.random(16) < flipped, -slope, slope)[:, None] * across
        grid[:, 0] += corner
        channels = of_crops[:, None] + np.array([6.0, 0.0, -6.0]) + noise.normal(0.0, 2.0, (16, 3))
        channels = channels[:, ::-1] if swapped else channels
        found[str(name)] = np.column_stack([of_crops, deviations, channels, grid])
    return found


class TestAgreement:
    def test_the_worst_picture_decides(self) -> None:
        rows = {str(name): np.full((4, 4, 3), 100 + name, np.uint8) for name in range(100)}
        near = {name: row.copy() for name, row in rows.items()}
        near["7"][:2, :, :] += 1  # half of its values by one level
        found = agree.compare("pictures-eval", rows, near)
        assert found.agrees
        assert (found.worst, found.worst_name) == (pytest.approx(0.5), "7")
        assert found.difference == pytest.approx(0.005)
        near["7"][:3, :, :] = rows["7"][:3, :, :] + np.uint8(1)
        found = agree.compare("pictures-eval", rows, near)
        assert not found.agrees
        assert "sample 7 differs by 0.750" in found.note

    def test_another_layout_or_dtype_does_not(self) -> None:
        rows = {"0": np.zeros((4, 4, 3), np.uint8)}
        found = agree.compare("pictures-eval", rows, {"0": np.zeros((3, 4, 4), np.uint8)})
        assert not found.agrees
        assert "uint8 (3, 4, 4)" in found.note
        assert not agree.compare("pictures-eval", rows, {"0": np.zeros((4, 4, 3), np.float32)}).agrees

    @pytest.mark.parametrize("job", ["pictures-eval", "pictures-train"])
    def test_all_samples_and_no_others(self, job: str) -> None:
        rows = {"0": np.zeros((4, 4, 3)), "1": np.zeros((4, 4, 3))}
        assert "1 samples are missing" in agree.compare(job, rows, {"0": rows["0"]}).note
        assert not agree.compare(job, {"0": rows["0"]}, rows).agrees

    def test_random_crops_of_the_same_kind_agree(self) -> None:
        reference = crops(1)
        for seed in range(2, 42):
            found = agree.compare("pictures-train", reference, crops(seed))
            assert found.agrees, found.note
            assert found.limit is not None
            assert 1.0 < found.limit < 2.0

    def test_random_crops_of_another_mean_or_size_do_not(self) -> None:
        reference = crops(1)
        found = agree.compare("pictures-train", reference, crops(2, shift=3.0))
        assert not found.agrees
        assert "crops' mean is +" in found.note
        # Crops that are always large have means near their picture's.
        found = agree.compare("pictures-train", reference, crops(2, spread=8.0))
        assert not found.agrees
        assert "distributions" in found.note
        # Another filter blurs; a crop that is always taken from one side has other corners.
        assert (
            "standard deviation is -"
            in agree.compare("pictures-train", reference, crops(2, deviation=-2.0)).note
        )
        assert "cell 0 of the crops" in agree.compare("pictures-train", reference, crops(2, corner=4.0)).note
        swapped = agree.compare("pictures-train", reference, crops(2, swapped=True)).note
        assert swapped.startswith("channel 0 of the crops is -"), swapped
        assert swapped.endswith("2 of 3 channels"), swapped
        # Without flips, and with flips of all, pictures keep their bright sides.
        for flipped in (0.0, 0.1, 1.0):
            note = agree.compare("pictures-train", reference, crops(2, flipped=flipped)).note
            assert note.startswith("crops lean to one side by +"), note
        once = {name: values[:1] for name, values in crops(2).items()}
        assert not agree.compare("pictures-train", reference, once).agrees

    @pytest.mark.parametrize("job", ["speech", "pictures-train"])
    def test_values_that_are_no_numbers_are_refused(self, job: str) -> None:
        rows = {"7": np.zeros((10, 80), np.float32)}
        broken = {"7": np.full((10, 80), np.nan, np.float32)}
        assert agree.compare(job, rows, broken).note == "sample 7 has values that are no finite numbers"

    def test_speech_may_differ_by_a_frame_and_a_tenth(self) -> None:
        rows = {"7": np.zeros((10, 80), np.float32)}
        assert agree.compare("speech", rows, {"7": np.full((9, 80), 0.09, np.float32)}).agrees
        assert not agree.compare("speech", rows, {"7": np.full((9, 80), 0.11, np.float32)}).agrees
        assert not agree.compare("speech", rows, {"7": np.zeros((8, 80), np.float32)}).agrees


def test_s3_serves_no_caches(tmp_path: Path) -> None:
    made = data.Data(tmp_path, "speech", 64)
    for name in ("parquet", "folder", "webdataset", "native-litdata", "native-hf_datasets"):
        (made.folder / name).mkdir(parents=True)
    found = [folder.name for folder in made.served(["litdata", "mosaicml_streaming"])]
    assert found == ["parquet", "folder", "webdataset", "native-litdata"]


def test_what_another_program_made_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def synth(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        made.append(command[command.index("--layout") + 1])
        return subprocess.CompletedProcess(command, 0, '{"samples": 64}')

    monkeypatch.setattr(subprocess, "run", synth)
    pictures_of = data.Data(tmp_path, "pictures", 64)
    pictures_of.folder.mkdir()
    (pictures_of.folder / "folder.json").write_text('{"samples": 64}')  # of a program that told no version
    pictures_of.make()
    pictures_of.make()
    assert made == list(data.LAYOUTS["pictures"])
    monkeypatch.setattr(data, "data_version", lambda: "another")
    pictures_of.make()
    assert made == 2 * list(data.LAYOUTS["pictures"])
    assert not list(tmp_path.rglob("*.new"))


def test_size_of_a_jpeg_from_its_header() -> None:
    header = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x0b\x08\x01\x5e\x01\x90\x03"
    assert pictures.size_of(header) == (400, 350)


def test_ceilings_are_read_from_the_benches() -> None:
    said = (
        "48 pictures of 400×350, 110 KiB\n"
        "libjpeg-turbo, full decode                                     900 images/s  1.110 ms\n"
        "decode_image,resize:256,center_crop:224                        800 images/s  1.2 ms\n"
    )
    found = ceilings.parse_pictures(said)
    assert found == {"libjpeg-turbo, full decode": 900.0, "feedstock's chain, pictures-eval": 800.0}
    speech = ceilings.parse_speech("symphonia alone     2.50\ndecode_audio    3.00\n", clip_s=4.0)
    assert speech == {"symphonia, MP3 decode": pytest.approx(500.0)}


BUILD = {
    "commit": "0123456789abcdef",
    "dirty": False,
    "profile": "release",
    "profile_settings": 'lto = "thin"',
    "wheel": "aaaaaaaabbbb",
    "programs": "cccc",
    "s3_server": "dddd",
    "cpu": "x",
    "kernel": "6",
}
AGREES = {"agrees": True, "difference": 0.1, "limit": 1.5, "worst": 3.0, "worst_name": "7", "note": ""}
RATES = {
    "feedstock": [1500.0, 1700.0, 1600.0, 1600.0, 1550.0],
    "feedstock_torch": [1400.0, 1500.0, 1600.0, 1500.0, 1500.0],
    "torch_pil": [400.0] * 5,
    "dali": [800.0, 1000.0, 900.0, 900.0, 900.0],
}


def results(tmp_path: Path) -> stored.Results:
    """Five rounds of pictures-train beside two peers, one of each kind; FFCV is not installed, others were not run."""
    made = stored.Results(tmp_path / "results.json")
    made.built(BUILD)
    made.content["machine"] = {
        "cores": 2, "cpu": "x", "memory_bytes": 2**30, "kernel": "6", "python": "3.11", "date": "2026-01-01"
    }  # fmt: skip
    made.content["settings"] = {
        "warm_up_batches": 28,
        "measured_batches": 56,
        "least_s": 3.5,
        "order_seed": 7,
    }
    made.content["ceilings"] = {"libjpeg-turbo, full decode": 900.0}
    for peer in (*RATES, "ffcv"):
        error = "error: no compiler" if peer == "ffcv" else None
        made.content["peers"][peer] = {**plan.facts(peer), "error": error, "versions": {}}
    for peer, rates in RATES.items():
        made.content["agreement"][peer] = {"pictures-train": dict(AGREES)}
        made.content["calibration"][peer] = {"pictures-train local": {"workers": 2, "rates": {"2": 800.0}}}
        for number, rate in enumerate(rates):
            key = stored.Key("pictures-train", "local", "steady", peer, number + 1)
            beside = {"load_before": 0.5, "others_cores": 0.25, "steal_share": 0.02}
            figures = {"rate": rate, "cpu_s_per_1000": 2000 / rate, "first_batch_s": 1.0, "peak_bytes": 2**20}
            made.add(key, figures | beside)
    return made


@pytest.fixture
def few_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were no other peers than those of ``results``."""
    monkeypatch.setattr(plan, "PEERS", (*RATES, "ffcv"))


def judged(made: stored.Results) -> dict[str, goals.Goal]:
    return {goal.what: goal for goal in goals.goals(made)}


FASTEST = "pictures-train, local, {}: rate over the fastest peer's"


@pytest.mark.usefixtures("few_peers")
class TestGoals:
    def test_rates_beside_all_and_first_batches_beside_the_same_kind(self, tmp_path: Path) -> None:
        found = judged(results(tmp_path))
        arrays, tensors = found[FASTEST.format("numpy")], found[FASTEST.format("torch")]
        assert arrays.found == "1.78 × (1,600/s; DALI, CPU 900/s); without FFCV (not installed)"
        assert tensors.found == "1.67 × (1,500/s; DALI, CPU 900/s); without FFCV (not installed)"
        assert (arrays.reached, tensors.reached) == (False, False)
        assert (arrays.peers, tensors.peers) == (2, 2)
        first = found["pictures-train, local, numpy: first batch, s"]
        assert (first.found, first.peers) == ("1.00 (DALI, CPU 1.00)", 1)
        assert found["pictures-train, local, torch: rate over PyTorch with Pillow"].reached
        assert "pictures-train, local, numpy: rate over PyTorch with Pillow" not in found
        assert found["pictures-train, local, numpy: CPU-s per 1000 samples"].reached
        # Not before every peer: a draw.
        assert found["pictures-train, local, torch: first batch, s"].reached is False

    def test_who_differs_is_no_best_peer(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.content["agreement"]["dali"]["pictures-train"] |= {"agrees": False, "note": "x"}
        found = judged(made)[FASTEST.format("numpy")].found
        assert found.startswith("4.00 × (1,600/s; PyTorch DataLoader, Pillow 400/s); without ")
        assert "DALI, CPU (its outputs differ)" in found

    def test_not_judged_with_few_rounds(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.content["runs"] = [
            run for run in made.content["runs"] if run["peer"] == "torch_pil" or run["round"] < 3
        ]
        told = "not judged: fewer than 3 rounds: feedstock, torch tensors 2, DALI, CPU 2"
        assert judged(made)[FASTEST.format("torch")].verdict == told
        assert "| not judged: fewer than 3 rounds" in table.asked(made)
        assert "are not judged" in table.summary(made)

    def test_rounds_of_who_cannot_be_best_may_be_few(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.content["runs"] = [
            run for run in made.content["runs"] if run["peer"] != "torch_pil" or run["round"] < 3
        ]
        found = judged(made)
        assert found[FASTEST.format("torch")].reached is False
        # Its first batch comes as soon as the best peer's.
        assert found["pictures-train, local, torch: first batch, s"].reached is None

    def test_rounds_that_overlap_are_told(self, tmp_path: Path) -> None:
        found = judged(results(tmp_path))
        # 1,700 over 800 would reach 1.8, 1,500 over 1,000 would not.
        assert found[FASTEST.format("numpy")].verdict == "no, within the spread"
        assert found["pictures-train, local, numpy: CPU-s per 1000 samples"].verdict == "yes"

    def test_a_better_peer_of_the_other_kind_is_named(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        for run in made.content["runs"]:
            if run["peer"] == "dali":
                run["first_batch_s"] = 0.9
        goal = judged(made)["pictures-train, local, torch: first batch, s"]
        assert goal.asked == "least of peers with torch tensors"
        assert goal.found.startswith("1.00 (PyTorch DataLoader, Pillow 1.00); with arrays, DALI, CPU 0.90")

    def test_memory_is_judged_with_defaults_too(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.content["peers"]["feedstock_defaults"] = {**plan.facts("feedstock_defaults"), "error": None}
        made.content["agreement"]["feedstock_defaults"] = {"pictures-train": dict(AGREES)}
        for peer, mib in (("feedstock", 100), ("feedstock_defaults", 500), ("dali", 300)):
            for number in range(3):
                key = stored.Key("pictures-train", "local", "stall", peer, number + 1)
                made.add(key, {"running_bytes": mib << 20, "stalled_bytes": mib << 20})
        found = judged(made)
        assert found["pictures-train, numpy: memory running, MiB"].verdict == "yes"
        by_default = found["pictures-train, numpy, with its defaults: memory running, MiB"]
        assert (by_default.verdict, by_default.found[:18]) == ("no", "500 (DALI, CPU 300")

    def test_the_files_as_they_are_have_a_goal_of_their_own(self, tmp_path: Path, few_peers: None) -> None:
        made = results(tmp_path)
        name = "pictures-train, local, numpy, files as they are: the same"
        assert name not in judged(made)
        made.content["peers"]["feedstock_files"] = {**plan.facts("feedstock_files"), "error": None}
        made.content["agreement"]["feedstock_files"] = {"pictures-train": dict(AGREES)}
        for number, rate in enumerate([1300.0, 1350.0, 1400.0, 1300.0, 1350.0]):
            key = stored.Key("pictures-train", "local", "steady", "feedstock_files", number + 1)
            made.add(key, {"rate": rate})
        assert judged(made)[name].verdict.startswith(
            "not judged: not calibrated: feedstock, files as they are"
        )
        made.content["calibration"]["feedstock_files"] = made.content["calibration"]["feedstock"]
        assert judged(made)[name].found.startswith("1.50 × (1,350/s; DALI, CPU 900/s)")
        assert judged(made)[name].reached is False
        assert judged(made)[FASTEST.format("numpy")].found.startswith("1.78 × (1,600/s")

    def test_not_judged_where_the_data_were_there_before(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        for run in made.content["runs"]:
            if run["peer"] == "feedstock":
                run["fetched_share"] = 0.95 if run["round"] > 1 else 0.4
        found = judged(made)
        assert "feedstock read only 40% of the data" in found[FASTEST.format("numpy")].verdict
        assert found[FASTEST.format("torch")].reached is False
        assert "read 95% (least 40%) of the bytes" in table.rates(made, "pictures-train", "local")

    def test_not_judged_without_calibration(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.content["calibration"]["dali"] = {"pictures-train s3": {"workers": 2, "rates": {"2": 1.0}}}
        assert judged(made)[FASTEST.format("numpy")].verdict == "not judged: not calibrated: DALI, CPU"
        made.content["calibration"]["dali"] = {
            "pictures-train local": {"workers": 2, "rates": {}, "error": "x"}
        }
        assert judged(made)[FASTEST.format("numpy")].reached is None

    @pytest.mark.parametrize("peer", ["dali", "feedstock"])
    def test_not_judged_without_agreement(self, tmp_path: Path, peer: str) -> None:
        made = results(tmp_path)
        del made.content["agreement"][peer]
        told = f"not judged: outputs not compared: {goals.title(made, peer)}"
        assert judged(made)[FASTEST.format("numpy")].verdict == told

    def test_not_judged_where_ours_differs(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.content["agreement"]["feedstock_torch"]["pictures-train"] |= {"agrees": False, "note": "darker"}
        assert (
            judged(made)[FASTEST.format("torch")].verdict
            == "not judged: feedstock's own outputs differ: darker"
        )

    def test_not_judged_with_another_profile(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.content["builds"] = {"x": BUILD | {"profile": "dev"}}
        assert "profile dev, not release" in judged(made)[FASTEST.format("numpy")].verdict

    def test_not_judged_with_a_peer_left_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = results(tmp_path)
        monkeypatch.setattr(plan, "PEERS", (*RATES, "ffcv", "grain", "webdataset", "lhotse"))
        found = judged(made)
        assert found[FASTEST.format("numpy")].verdict == "not judged: not run: grain, webdataset"
        first = found["pictures-train, local, torch: first batch, s"]
        assert first.verdict == "not judged: not run: webdataset"
        # This goal names the one peer that it is about.
        assert found["pictures-train, local, torch: rate over PyTorch with Pillow"].reached

    def test_a_peer_that_failed_is_named(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.content["runs"] = [run for run in made.content["runs"] if run["peer"] != "torch_pil"]
        made.content["peers"]["torch_io"] = {**plan.facts("torch_io"), "error": None, "versions": {}}
        made.add(stored.Key("pictures-train", "local", "steady", "torch_pil", 1), {"error": "ValueError: x"})
        assert "PyTorch DataLoader, Pillow (failed)" in judged(made)[FASTEST.format("torch")].found
        assert "PyTorch DataLoader, Pillow: failed: ValueError: x" in table.rates(
            made, "pictures-train", "local"
        )

    def test_resuming_at_the_wrong_batch_does_not_count(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        for peer, took, right in (("feedstock", 0.5, True), ("dali", 0.3, False), ("tf_data", 2.0, True)):
            made.content["peers"].setdefault(peer, {**plan.facts(peer), "error": None, "versions": {}})
            for number in range(5):
                key = stored.Key("pictures-train", "local", "resume", peer, number + 1)
                made.add(key, {"resume_s": took, "right": right})
        found = judged(made)["pictures-train, numpy: resume, s"]
        assert found.found == "0.50 (tf.data 2.00); without DALI, CPU (resumes at the wrong batch)"


def test_one_benchmark_at_a_time(tmp_path: Path) -> None:
    with (
        alone.alone(tmp_path),
        pytest.raises(alone.Running, match=f"process {os.getpid()}"),
        alone.alone(tmp_path),
    ):
        pass
    with alone.alone(tmp_path):
        pass


class TestResults:
    def test_runs_are_merged(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        key = stored.Key("pictures-train", "local", "steady", "dali", 2)
        made.add(key, {"rate": 1200.0})
        again = stored.Results(made.path)
        assert again.run(key) is not None
        assert again.values("pictures-train", "local", "steady", "dali", "rate") == [800, 1200, 900, 900, 900]
        assert again.run(stored.Key("pictures-train", "s3", "steady", "dali", 2)) is None

    def test_runs_of_other_settings_are_not_mixed(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.settle({"epochs": 1, "cores": 2})
        with pytest.raises(ValueError, match="epochs 1, not 3"):
            made.settle({"epochs": 3, "cores": 2})
        assert made.content["settings"]["epochs"] == 1

    def test_every_run_names_its_build(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.built(BUILD | {"commit": "ffff00001111", "dirty": True})  # the same wheel and programs
        made.add(stored.Key("speech", "local", "steady", "dali", 1), {"rate": 1.0})
        names = [run["build"] for run in made.content["runs"]]
        assert set(names) == {"0123456789ab-aaaaaaaa-release", "ffff00001111-dirty-aaaaaaaa-release"}
        assert set(names) == made.content["builds"].keys()

    def test_a_changed_contender_is_measured_anew(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        facts = {**plan.facts("torch_pil"), "error": None, "program": "one"}
        assert not made.described("torch_pil", facts, agree.REFERENCES)
        assert made.runs("pictures-train", "local", "steady", "torch_pil")
        assert made.described("torch_pil", facts | {"program": "two"}, agree.REFERENCES)
        assert not made.runs("pictures-train", "local", "steady", "torch_pil")
        assert "torch_pil" not in made.content["calibration"]
        # It is the reference of pictures: what was compared with it is compared again.
        assert "pictures-train" not in made.content["agreement"]["dali"]
        assert made.runs("pictures-train", "local", "steady", "dali")

    @pytest.mark.parametrize("part", stored.SAME_BUILD)
    def test_runs_of_another_build_are_not_mixed(self, tmp_path: Path, part: str) -> None:
        made = results(tmp_path)
        with pytest.raises(stored.Unmixable, match=f"{part} .* not 'other'"):
            made.built(BUILD | {part: "other"})
        for measured in stored.MEASURED:
            made.content[measured] = type(made.content[measured])()
        made.built(BUILD | {part: "other"})
        assert [build[part] for build in made.content["builds"].values()] == ["other"]

    def test_another_version_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "results.json"
        path.write_text(json.dumps({"version": 1}))
        with pytest.raises(ValueError, match="version 1"):
            stored.Results(path)

    def test_calibration_is_of_pictures_or_speech_and_of_a_storage(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.content["calibration"]["dali"]["pictures-train s3"] = {"workers": 4, "rates": {}}
        assert plan.workers(made, "dali", "pictures-train", "s3", cores=3) == 4
        assert plan.workers(made, "dali", "pictures-train", "local", cores=3) == 2
        assert plan.workers(made, "dali", "pictures-eval", "s3", cores=3) == 4
        assert plan.workers(made, "dali", "speech", "local", cores=3) == 3


class TestGoingOn:
    """A benchmark that is cut off by ``--at-most`` goes on where it was."""

    def bench(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[Any], **options: Any
    ) -> bench.Bench:
        """Two peers, pictures-train from local files; each try takes the next of what is ``said``, and all the time
        there is."""
        chosen = {
            "cache": tmp_path,
            "samples": 640,
            "jobs": ["pictures-train"],
            "storage": ["local"],
            "rounds": 1,
        }
        chosen |= {"at_most": 1.0, "again": None, "seed": 7, "cores": 2, "epochs": 1, **options}
        made = bench.Bench(argparse.Namespace(**chosen), stored.Results(tmp_path / "results.json"))
        monkeypatch.setattr(made, "_able", lambda job, storage, mode="steady": ["dali", "torch_pil"])
        monkeypatch.setattr(made, "_sample_bytes", lambda peer, data: 1.0)

        def answer(peer: str, job: Any, server: Any) -> dict[str, Any]:
            made._until = 0.0
            beside = {"load_before": 0.0, "others_cores": 0.0, "steal_share": 0.0, "took_s": 1.0}
            beside |= {"cpu_s_per_1000": 1.0, "first_batch_s": 1.0, "peak_bytes": 1.0, "made": time.time()}
            return {**beside, **said.pop(0)}

        monkeypatch.setattr(made, "_try", answer)
        return made

    def calls(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, said: list[Any], **options: Any
    ) -> int:
        """How often the command is given until it is finished."""
        for count in range(1, 20):
            made = self.bench(tmp_path, monkeypatch, said, **options)
            made.results.again(options.get("again"), {"part": part})
            try:
                getattr(made, part)()
            except bench.OutOfTime:
                made.results.write()
                continue
            if options.get("again"):
                made.results.finished()
            return count
        raise AssertionError("it never ends")

    def test_calibration_keeps_every_short_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rates: list[Any] = [{"rate": float(rate)} for rate in (1, 9, 2, 5, 4, 3)]
        rates += [{"error": "x"}] * bench.TRIES  # DALI with 4 threads
        rates += [{"rate": 7.0}] * 9
        jobs = ["pictures-eval", "pictures-train", "pictures-f32"]
        assert self.calls(tmp_path, monkeypatch, "_calibrate", rates, calibrations=3, jobs=jobs) == 17
        assert rates == []
        kept = stored.Results(tmp_path / "results.json").content["calibration"]
        found = kept["dali"]["pictures-train local"]
        assert (found["workers"], found["rates"], found["failed"]) == (2, {"1": 2.0, "2": 4.0}, ["4: x"])

    def test_a_failure_is_tried_once_more_and_then_done(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said: list[Any] = [{"error": "x"}, {"error": "y"}, {"rate": 1.0}]
        self.calls(tmp_path, monkeypatch, "_rates", said)
        assert said == []
        runs = stored.Results(tmp_path / "results.json").content["runs"]
        assert sorted((run.get("error"), run.get("tries")) for run in runs if "error" in run) == [("y", 2)]
        # Once more it has nothing to do, but where it is told to.
        self.calls(tmp_path, monkeypatch, "_rates", said)
        said += [{"rate": 2.0}]
        self.calls(tmp_path, monkeypatch, "_rates", said, again="failed")
        assert said == []

    def test_again_goes_on_and_ends(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls(tmp_path, monkeypatch, "_rates", [{"rate": 1.0}, {"rate": 1.0}])
        said: list[Any] = [{"rate": 2.0}, {"rate": 3.0}]
        assert self.calls(tmp_path, monkeypatch, "_rates", said, again="all") > 1
        assert said == []
        runs = stored.Results(tmp_path / "results.json").content["runs"]
        assert sorted(run["rate"] for run in runs) == [2.0, 3.0]

    @pytest.mark.parametrize(
        ("part", "before"),
        [("rates", ["_install", "_prepare"]), ("ceilings", ["_install"])],
    )
    def test_what_a_part_needs_is_made_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, before: list[str]
    ) -> None:
        made = self.bench(tmp_path, monkeypatch, [], parts=[part], peers=[], wheel=None, s3_server=None)
        build = {"commit": "abc", "dirty": False, "wheel": "def", "profile": "release"}
        monkeypatch.setattr(bench.builds, "fingerprint", lambda wheel: build)
        called: list[str] = []
        for name in ("_install", "_prepare", "_rates", "_ceilings"):
            monkeypatch.setattr(made, name, lambda name=name: called.append(name))
        for name in ("_data", "_checked"):
            monkeypatch.setattr(made, name, {})
        assert made.run()
        assert called == [*before, f"_{part}"]

    def test_time_left_is_that_of_runs_alike(self, tmp_path: Path) -> None:
        made = stored.Results(tmp_path / "results.json")
        key = stored.Key("pictures-train", "local", "steady", "dali", 1)
        assert plan.time_left(made, [key]) is None
        made.add(key, {"took_s": 10.0})
        made.add(stored.Key("pictures-train", "local", "steady", "torch_pil", 1), {"took_s": 30.0})
        keys = [
            stored.Key("pictures-train", "local", "steady", peer, 2)
            for peer in ("dali", "torch_pil", "grain")
        ]
        assert plan.time_left(made, keys) == pytest.approx(10 + 30 + 20)


class TestBuilds:
    def wheel(self, folder: Path, content: str, at: tuple[int, ...]) -> Path:
        folder.mkdir()
        path = folder / "feedstock-0.1.0.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(zipfile.ZipInfo("feedstock/__init__.py", (*at, 0, 0, 0)), content)
            archive.writestr(zipfile.ZipInfo("feedstock-0.1.0.dist-info/RECORD", (*at, 0, 0, 0)), str(at))
        path.with_name(f"{path.name}.build.json").write_text(
            '{"commit": "abc", "dirty": true, "profile": "release"}'
        )
        return path

    def test_a_wheel_is_its_content(self, tmp_path: Path) -> None:
        first = self.wheel(tmp_path / "a", "x = 1", (2026, 1, 1))
        later = self.wheel(tmp_path / "b", "x = 1", (2026, 2, 2))
        other = self.wheel(tmp_path / "c", "x = 2", (2026, 1, 1))
        assert builds.content_hash(first) == builds.content_hash(later) != builds.content_hash(other)

    def test_fingerprint(self, tmp_path: Path) -> None:
        found = builds.fingerprint(self.wheel(tmp_path / "a", "x = 1", (2026, 1, 1)))
        assert (found["commit"], found["dirty"], found["profile"]) == ("abc", True, "release")
        assert found["profile_settings"] == "lto = false"
        assert found.keys() == {*stored.SAME_BUILD, "commit", "dirty"}

    def test_programs_that_measure_are_part_of_it(self, tmp_path: Path) -> None:
        copied = tmp_path / "peers"
        shutil.copytree(builds.PROGRAMS, copied)
        before = builds.programs_hash(copied / "harness")
        (copied / "harness" / "page.py").write_text("# another page\n")
        assert builds.programs_hash(copied / "harness") == before
        for name in ("contest.py", "bench.py", "plan.py", "agree.py", "environments.py"):
            (copied / "harness" / name).write_text(f"# another way: {name}\n")
            assert builds.programs_hash(copied / "harness") != before
            before = builds.programs_hash(copied / "harness")

    def test_a_contender_is_its_file_and_what_that_imports(self, tmp_path: Path) -> None:
        copied = tmp_path / "peers"
        shutil.copytree(builds.PROGRAMS, copied)

        def hashes() -> dict[str, str]:
            return {peer: builds.program_hash(peer, plan.environment(peer), copied) for peer in plan.PEERS}

        def changed(name: str, more: str = "another = 'way'") -> set[str]:
            before = hashes()
            (copied / name).write_text((copied / name).read_text() + f"\n{more}\n")
            after = hashes()
            return {peer for peer in before if before[peer] != after[peer]}

        assert len(set(hashes().values())) == len(plan.PEERS)
        assert changed("contenders/dali.py") == {"dali"}
        assert changed("contenders/feedstock.py") == set(goals.ALSO_OURS)
        assert changed("requirements/spdl.txt") == {"spdl", "spdl_torch"}
        assert changed("contenders/decoding.py") >= {"grain", "ray_data", "webdataset", "spdl_torch"}
        assert changed("contenders/protocol.py") == set(plan.PEERS)
        assert changed("contenders/loading.py", "# only said") == set()
        assert changed("contenders/loading.py", 'GUIDANCE = ("another page",)') == set()
        dali = copied / "contenders" / "dali.py"
        before = hashes()
        dali.write_text(
            dali.read_text().replace("num_threads as calibrated", "as many threads as calibrated")
        )
        assert hashes() == before
        dali.write_text(dali.read_text().replace('title="DALI', 'title="another DALI'))
        assert {peer for peer, now in hashes().items() if now != before[peer]} == {"dali"}

    def test_profile_settings(self) -> None:
        text = '[profile.release]\nlto = "thin" # why\n\n[profile.dev]\nopt-level = 0\n'
        assert builds.profile_settings(text, "release") == 'lto = "thin"'
        assert builds.profile_settings(text, "dev") == "opt-level = 0"
        assert builds.profile_settings(text, "bench") == "Cargo's defaults"


@pytest.fixture
def plain_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without matplotlib, which the harness has in its own environment."""
    monkeypatch.setattr(plots, "_draw", lambda made, job, storage, path: path.write_text("<svg/>"))


@pytest.mark.usefixtures("plain_plots")
class TestReport:
    def test_table_names_all(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        text = table.rates(made, "pictures-train", "local")
        lines = text.splitlines()
        assert lines[2].startswith("| *bare: libjpeg-turbo, full decode, 2 cores* |  | *1,800* |")
        assert lines[3].startswith("| **feedstock** | numpy | 1,600 ±6% | 1.00 | 1.25 |")
        assert lines[4].startswith("| **feedstock, torch tensors** | torch | 1,500 ±7% | 1.00 |")
        assert lines[5].startswith("| DALI, CPU | numpy | 900 ±11% | 1.78 |")
        # Beside feedstock with tensors, as it hands out tensors.
        assert lines[6].startswith("| PyTorch DataLoader, Pillow | torch | 400 ±0% | 3.75 |")
        assert lines[6].endswith("| 5 | agree, 0.10 of 1.50 |")
        assert "- FFCV: cannot be installed: error: no compiler" in text
        assert "others used 0.25 and 0.25 cores, 2.0% and 2.0% of the machine's time was stolen" in text
        assert len({line.count("|") for line in lines if line.startswith("|")}) == 1

    def test_who_failed_with_a_stalled_consumer_is_shown(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        key = stored.Key("pictures-train", "local", "stall", "feedstock", 1)
        sizes = {f"{name}_bytes": 2**20 for name in ("rest", "running", "stalled", "stalled_peak")}
        made.add(key, {**sizes, "running_file_bytes": 0, "stalled_cores": 0.0})
        made.add(stored.Key("pictures-train", "local", "stall", "dali", 1), {"error": "no memory"})
        text = table.memory(made, "pictures-train")
        assert "| DALI, CPU | numpy | failed: no memory |" in text
        assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1

    def test_failures_and_second_tries_are_told(self) -> None:
        runs: list[dict[str, Any]] = [{"rate": 1.0}, {"rate": 2.0, "tries": 2}, {"error": "x", "tries": 2}]
        assert table.tries(runs[:1], "rate") == "1"
        assert table.tries(runs, "rate") == "2 (1 failed, 2 tried again)"

    def test_from_s3_the_servers_time_is_told(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        for run in [run for run in made.content["runs"] if run["peer"] == "dali"]:
            made.add(
                stored.Key("pictures-train", "s3", "steady", "dali", run["round"]),
                {**run, "server_cpu_s": 1.5, "storage": "s3"},
            )
        lines = table.rates(made, "pictures-train", "s3").splitlines()
        assert "server CPU-s a run" in lines[0]
        assert "| 1.5 |" in next(line for line in lines if line.startswith("| DALI"))
        assert len({line.count("|") for line in lines if line.startswith("|")}) == 1

    def test_page_brings_its_plots_along(self, tmp_path: Path) -> None:
        at = tmp_path / "docs" / "benchmarks.md"
        page.write(results(tmp_path), at)
        text = at.read_text()
        assert "1.78 × (1,600/s; DALI, CPU 900/s)" in text
        assert "2 cores of x" in text
        links = [part.split(")", 1)[0] for part in text.split("](")[1:]]
        assert "benchmarks/pictures-train-local.svg" in links
        assert "benchmarks/results.json" in links
        assert "https://docs.pytorch.org/docs/stable/data.html" in links
        assert all((at.parent / link).is_file() for link in links if not link.startswith("https://"))
        # Once more, from the file beside the page.
        page.write(stored.Results(tmp_path / "docs" / "benchmarks" / "results.json"), at)
        assert at.read_text() == text

    def test_method_speaks_of_what_was_run(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        said = " ".join(method.sentences(made))
        assert "56 batches in the consumer's hands in the middle of the first epoch" in said
        assert "profile release" in said
        for absent in ("S3", "paused", "Resuming", "every row", "formats of their own"):
            assert absent not in said
        made.add(
            stored.Key("pictures-train", "s3", "resume", "feedstock", 1), {"resume_s": 1.0, "right": True}
        )
        assert "Resuming" in " ".join(method.sentences(made))

    def test_report_needs_nothing_but_a_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        made = results(tmp_path)
        out = tmp_path / "out"
        words = ["run", "--cache", str(tmp_path / "none"), "--parts", "report", "--out", str(out)]
        monkeypatch.setattr(sys, "argv", [*words, "--results", str(made.path)])
        assert command.main() == 0
        assert (out / "table.md").is_file()
        assert (out / "pictures-train-local.svg").is_file()
        # Without --out it leaves everything as it is.
        before = sorted(tmp_path.rglob("*"))
        monkeypatch.setattr(sys, "argv", [*words[:-2], "--results", str(made.path)])
        assert command.main() == 0
        assert sorted(tmp_path.rglob("*")) == before
        monkeypatch.setattr(sys, "argv", [*words, "--results", str(tmp_path / "no.json")])
        assert command.main() == 2
        assert "holds no runs" in capsys.readouterr().err
