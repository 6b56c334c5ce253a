"""The content of a file of results, and resuming from it."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from harness import agree, bench, builds, data, goals, plan, stored
from known import BUILD, results


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
    (pictures_of.folder / "folder.json").write_text('{"samples": 64}')  # made by a program without a version
    pictures_of.make()
    pictures_of.make()
    assert made == list(data.LAYOUTS["pictures"])
    monkeypatch.setattr(data, "data_version", lambda: "another")
    pictures_of.make()
    assert made == 2 * list(data.LAYOUTS["pictures"])
    assert not list(tmp_path.rglob("*.new"))


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
        made.built(BUILD | {"commit": "ffff00001111", "dirty": True})  # the same package and programs
        made.add(stored.Key("speech", "local", "steady", "dali", 1), {"rate": 1.0})
        names = [run["build"] for run in made.content["runs"]]
        assert set(names) == {
            f"{name}-aaaaaaaa-release on x, Linux 6" for name in ("0123456789ab", "ffff00001111-dirty")
        }
        assert set(names) == made.content["builds"].keys()

    def test_a_changed_contender_is_measured_anew(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        facts = {**plan.facts("torch_pil"), "error": None, "program": "one"}
        assert not made.described("torch_pil", facts, agree.REFERENCES)
        assert made.runs("pictures-train", "local", "steady", "torch_pil")
        assert made.described("torch_pil", facts | {"program": "two"}, agree.REFERENCES)
        assert not made.runs("pictures-train", "local", "steady", "torch_pil")
        assert "torch_pil" not in made.content["calibration"]
        # It is the reference for images: outputs that were compared with it are compared again.
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

    @pytest.mark.parametrize("part", stored.SAME_MACHINE)
    def test_what_is_compared_is_of_one_machine(self, tmp_path: Path, part: str) -> None:
        made = results(tmp_path)
        before = len(made.content["runs"])
        made.built(BUILD | {part: "other"})
        for job, storage, mode in (
            ("speech", "local", "steady"),
            ("pictures-train", "s3", "steady"),
            ("pictures-train", "local", "stall"),
        ):
            made.add(stored.Key(job, storage, mode, "dali", 1), {"rate": 1.0})
        assert len(made.content["runs"]) == before + 3
        key = stored.Key("pictures-train", "local", "steady", "torch_io", 1)
        everyone = [*made.content["peers"], "torch_io"]
        for what, peers in ((None, everyone), ("failed", everyone), ("all", ["torch_io"])):
            made.again(what, {"again": what, "peers": peers})
            with pytest.raises(stored.Unmixable, match="another machine made .* --again with all peers"):
                made.add(key, {"rate": 1.0})
        made.again("all", {"again": "all", "peers": everyone})
        # Runs that the other machine had repeated before it was interrupted are repeated here.
        assert not any(
            made.is_done({**run, "made": time.time()}, True) for run in made.content["runs"][:before]
        )
        made.add(key, {"rate": 1.0})
        assert len(made.content["runs"]) == 4
        assert {made.machine_of(run) for run in made.content["runs"]} == {
            made.machine_of(made.content["runs"][-1])
        }

    def test_another_version_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "results.json"
        path.write_text(json.dumps({"version": 1}))
        with pytest.raises(ValueError, match="version must be 3; got 1"):
            stored.Results(path)

    def test_calibration_is_of_pictures_or_speech_and_of_a_storage(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.content["calibration"]["dali"]["pictures-train s3"] = {"workers": 4, "rates": {}}
        assert plan.workers(made, "dali", "pictures-train", "s3", cores=3) == 4
        assert plan.workers(made, "dali", "pictures-train", "local", cores=3) == 2
        assert plan.workers(made, "dali", "pictures-eval", "s3", cores=3) == 4
        assert plan.workers(made, "dali", "speech", "local", cores=3) == 3


class TestGoingOn:
    """A benchmark that ``--at-most`` interrupts resumes where it stopped."""

    def bench(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[Any], **options: Any
    ) -> bench.Bench:
        """Runs two peers with pictures-train from local files. Each try takes the next answer of ``said`` and all the
        remaining time."""
        chosen = {
            "cache": tmp_path,
            "samples": 640,
            "jobs": ["pictures-train"],
            "storage": ["local"],
            "rounds": 1,
        }
        chosen |= {"at_most": 1.0, "again": None, "seed": 7, "cores": 2, "epochs": 1, **options}
        made = bench.Bench(argparse.Namespace(**chosen), stored.Results(tmp_path / "results.json"))
        made.results.built(BUILD)
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
        """Returns the number of commands until the benchmark is finished."""
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
        # Another command has nothing to do, except with ``--again``.
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
        monkeypatch.setattr(bench.builds, "fingerprint", lambda wheel: BUILD)
        called: list[str] = []
        for name in ("_install", "_prepare", "_rates", "_ceilings"):
            monkeypatch.setattr(made, name, lambda name=name: called.append(name))
        for name in ("_data", "_checked"):
            monkeypatch.setattr(made, name, {})
        assert made.run()
        assert called == [*before, f"_{part}"]

    def test_time_left_is_that_of_runs_alike(self, tmp_path: Path) -> None:
        made = stored.Results(tmp_path / "results.json")
        made.built(BUILD)
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
            for name in ("RECORD", "sboms/feedstock.cyclonedx.json"):
                archive.writestr(
                    zipfile.ZipInfo(f"feedstock-0.1.0.dist-info/{name}", (*at, 0, 0, 0)), str(at)
                )
        path.with_name(f"{path.name}.build.json").write_text(
            '{"commit": "abc", "dirty": true, "sources": "eee", "profile": "release"}'
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
        assert found["sources"] == "eee"
        assert found["profile_settings"] == "lto = false"
        assert found.keys() == {*stored.SAME_BUILD, *stored.SAME_MACHINE, "commit", "dirty"}

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
