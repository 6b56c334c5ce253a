"""The arithmetic of runs: rates, CPU time, memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from harness import account, contest, plan, stored


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
        assert found["others_cores"] == pytest.approx(0.3)  # busy for 10 CPU-s in 10 s, 7 of them its own
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
        # A contender that delivers an epoch at once, after making it for 5 s, makes one epoch in 5 s.
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
        )  # a tree misses processes that end between samples
        assert max(found.processes for found in counted.samples) >= 2
        found = counted.memory(begun, time.monotonic())
        assert found.own_bytes > 2 << 20
        assert found.file_bytes > 0  # the interpreter's, shared with other processes
