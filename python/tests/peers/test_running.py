"""Jobs, contenders and turns."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contenders import pictures, protocol
from harness import __main__ as command
from harness import alone, ceilings, contest, environments, goals, plan


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
            """An array like Grain's."""

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
        assert plan.numbers("torch_pil", 2, "local") == [1, 2, 4]
        assert plan.numbers("torch_pil", 1, "local") == [1, 2]
        assert plan.numbers("feedstock", 2, "local") == [2]


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


def test_one_benchmark_at_a_time(tmp_path: Path) -> None:
    with (
        alone.alone(tmp_path),
        pytest.raises(alone.Running, match=f"process {os.getpid()}"),
        alone.alone(tmp_path),
    ):
        pass
    with alone.alone(tmp_path):
        pass
