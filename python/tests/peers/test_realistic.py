"""The storage ``s3-realistic``: who takes part, its server, workers to try, waiting with steps, reports."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contenders import protocol
from contenders.protocol import REALISTIC
from harness import contest, data, goals, method, plan, stored, table
from known import RATES, judged, results

# Writes its arguments next to itself, prints an endpoint, and ends with its standard input.
SERVER = """#!/bin/sh
echo "$@" >"$0.arguments"
echo http://127.0.0.1:1
cat >/dev/null
"""


def measured(tmp_path: Path) -> stored.Results:
    """The results of local files, and five rounds with and without steps from s3-realistic."""
    made = results(tmp_path)
    made.content["settings"] |= {
        "batch_sizes": plan.BATCH_SIZES,
        "step_s": plan.STEP_S,
        "s3_realistic": list(data.SERVER_OPTIONS[REALISTIC]),
    }
    for peer, rates in RATES.items():
        waits = 0.005 if peer.startswith("feedstock") else 0.4
        made.content["calibration"][peer][f"pictures-train {REALISTIC}"] = {"workers": 8, "rates": {"8": 1.0}}
        for number, rate in enumerate(rates):
            beside = {"load_before": 0.5, "others_cores": 0.25, "steal_share": 0.02, "server_cpu_s": 1.5}
            figures = {"rate": rate, "cpu_s_per_1000": 2000 / rate, "first_batch_s": 1.0, "peak_bytes": 2**20}
            steady = stored.Key("pictures-train", REALISTIC, "steady", peer, number + 1)
            made.add(steady, figures | beside)
            steps = stored.Key("pictures-train", REALISTIC, "steps", peer, number + 1)
            made.add(steps, figures | beside | {"wait_share": waits, "longest_wait_s": 0.2, "workers": 8})
    return made


class TestContenders:
    def test_who_reads_s3_takes_part(self) -> None:
        for peer in plan.PEERS:
            described = plan.facts(peer)
            for job in plan.JOBS:
                for mode in ("steady", "steps"):
                    why = plan.why_not(described, job, "s3", mode)
                    assert plan.why_not(described, job, REALISTIC, mode) == why, (peer, job)
        assert "no S3 file system" in str(plan.why_not(plan.facts("tf_data"), "speech", REALISTIC))

    def test_it_is_read_like_s3_and_its_answers_are_late(self) -> None:
        late = protocol.Job("speech", REALISTIC, "steady", {}, "", 32, 2, 4, 100)
        prompt = protocol.Job("speech", "s3", "steady", {}, "", 32, 2, 4, 100)
        local = protocol.Job("speech", "local", "steady", {}, "", 32, 2, 4, 100)
        assert [job.remote for job in (late, prompt, local)] == [True, True, False]
        assert [job.late for job in (late, prompt, local)] == [True, False, False]

    def test_data_are_those_of_s3(self, tmp_path: Path) -> None:
        pictures = data.Data(tmp_path, "pictures", 10)
        assert pictures.uris(REALISTIC) == pictures.uris("s3")
        assert pictures.native(REALISTIC, "litdata") == "s3://pictures-10/native-litdata"

    @pytest.mark.parametrize(("storage", "options"), [("s3", ""), (REALISTIC, "--profile s3 --seed 1 ")])
    def test_the_server_has_a_profile(self, tmp_path: Path, storage: str, options: str) -> None:
        program = tmp_path / "server"
        program.write_text(SERVER)
        program.chmod(0o755)
        root = tmp_path / "root"
        with data.S3Server(program, root, [], [], storage) as server:
            assert server.endpoint == "http://127.0.0.1:1"
        assert (tmp_path / "server.arguments").read_text() == f"{options}{root}\n"


class TestWorkers:
    def test_more_than_cores_are_tried(self) -> None:
        assert plan.numbers("torch_pil", 2, REALISTIC) == [2, 4, 8, 16, 32]
        assert plan.numbers("torch_pil", 8, REALISTIC) == [8, 16, 32]
        assert plan.numbers("torch_pil", 48, REALISTIC) == [48]
        assert plan.numbers("feedstock", 2, REALISTIC) == [2]

    def test_larger_numbers_are_left_out_once_they_deliver_less(self) -> None:
        assert not plan.is_past_best({})
        assert not plan.is_past_best({"2": [50.0], "4": [100.0]})
        assert not plan.is_past_best({"2": [50.0], "4": [100.0], "8": [95.0], "16": []})
        assert plan.is_past_best({"2": [50.0], "4": [100.0], "8": [80.0, 85.0], "16": []})


class TestSteps:
    def test_the_consumer_sleeps_and_states_when_it_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [0.0]
        lines: list[dict[str, Any]] = []

        class Told:
            def tell(self, event: str, at: float | None = None, **facts: Any) -> None:
                lines.append({"event": event, "at": at, **facts})

        def slept(seconds: float) -> None:
            now[0] += seconds

        def batches() -> Any:
            for _ in itertools.count():
                now[0] += 0.01
                yield protocol.Batch(np.zeros((10, 4)), [0])

        monkeypatch.setattr(protocol.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(protocol.time, "sleep", slept)
        job = protocol.Job(
            "pictures-train", REALISTIC, "steps", {}, "", 10, 2, 2, 100, warm_up=20, measured=30, step_s=0.05
        )
        protocol._steps(job, protocol.Loader(batches(), fetched=lambda: 1), Told())  # type: ignore[arg-type]
        steps = [line for line in lines if line["event"] != "fetched"]
        assert [line["at"] for line in steps] == pytest.approx([0.01, 0.07, 0.13, 0.19, 0.25])
        assert [line["requested"] for line in steps] == pytest.approx([0.0, 0.06, 0.12, 0.18, 0.24])
        assert sum(line["event"] == "fetched" for line in lines) == 2
        found = contest.waiting(steps[2:], 0.18)
        assert found == {"wait_share": pytest.approx(1 / 6), "longest_wait_s": pytest.approx(0.01)}


@pytest.mark.usefixtures("few_peers")
class TestReports:
    def test_the_goal_is_three_times_the_best_peer(self, tmp_path: Path) -> None:
        found = judged(measured(tmp_path))
        rate = found[f"pictures-train, {REALISTIC}, numpy: rate over the fastest peer's"]
        assert (rate.asked, rate.reached) == ("3.0 ×", False)
        assert rate.found.startswith("1.78 × (1,600/s; DALI, CPU 900/s)")
        waits = found[f"pictures-train, {REALISTIC}, torch, with steps: waiting, % of the time"]
        assert (waits.asked, waits.verdict) == ("least of all peers", "yes")
        assert waits.found.startswith("0.50 (PyTorch DataLoader, Pillow 40.00)")

    def test_there_is_no_goal_of_what_was_not_run(self, tmp_path: Path) -> None:
        assert not any(REALISTIC in goal.what for goal in goals.goals(results(tmp_path)))

    def test_tables_show_waiting(self, tmp_path: Path) -> None:
        made = measured(tmp_path)
        titles = dict(table.others(made))
        lines = titles[f"Waiting with steps, {REALISTIC}, pictures-train"].splitlines()
        assert lines[2].startswith("| feedstock | numpy | 0.5 | 0.20 | 1,600 ±6% | 1.25 | 8 | 5 |")
        assert any(line.startswith("| DALI, CPU | numpy | 40.0 | 0.20 |") for line in lines)
        assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
        assert "server CPU-s per run" in table.rates(made, "pictures-train", REALISTIC)
        assert f"{REALISTIC}, numpy" in table.fastest(made)

    def test_results_from_before_it_do_not_mention_it(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        text = " ".join(
            [*method.limits(made), *method.sentences(made), table.markdown(made), table.fastest(made)]
        )
        assert "realistic" not in text

    def test_the_method_states_the_profile(self, tmp_path: Path) -> None:
        made = measured(tmp_path)
        said = " ".join(method.sentences(made))
        assert "the same server with `--profile s3 --seed 1`" in said
        assert "the consumer sleeps 50 ms after each batch" in said
        assert "pictures-train (64 samples a batch, so at most 1,280/s)" in said
        assert "speech from S3, realistic" in " ".join(method.limits(made))
