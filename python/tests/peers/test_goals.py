"""The judged goals, and their verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import goals, plan, stored, table
from known import AGREES, BUILD, FASTEST, RATES, judged, results


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
        # Not faster than every peer: a draw.
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
        assert "| not judged: fewer than 3 rounds" in table.asked(goals.goals(made))
        assert "are not judged" in table.summary(made)

    def test_rounds_of_who_cannot_be_best_may_be_few(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.content["runs"] = [
            run for run in made.content["runs"] if run["peer"] != "torch_pil" or run["round"] < 3
        ]
        found = judged(made)
        assert found[FASTEST.format("torch")].reached is False
        # Its first batch comes at the same time as the best peer's.
        assert found["pictures-train, local, torch: first batch, s"].reached is None

    def test_rounds_that_overlap_are_told(self, tmp_path: Path) -> None:
        found = judged(results(tmp_path))
        # 1,700 / 800 would reach 1.8, 1,500 / 1,000 would not.
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
        name = "pictures-train, local, numpy, files as they are: rate over the fastest peer's"
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

    def test_pixels_decoded_ahead_are_named_and_never_best(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        made.content["peers"]["ffcv_raw"] = {**plan.facts("ffcv_raw"), "error": None}
        made.content["agreement"]["ffcv_raw"] = {"pictures-train": dict(AGREES)}
        for number in range(5):
            key = stored.Key("pictures-train", "local", "steady", "ffcv_raw", number + 1)
            made.add(key, {"rate": 2000.0, "cpu_s_per_1000": 0.1, "first_batch_s": 0.1})
        found = judged(made)
        assert found[FASTEST.format("numpy")].found.startswith(
            "1.78 × (1,600/s; DALI, CPU 900/s); 0.80 × FFCV, pixels decoded ahead"
        )
        assert found["pictures-train, local, torch: first batch, s"].found.startswith(
            "1.00 (PyTorch DataLoader, Pillow 1.00)"
        )
        over_pillow = found["pictures-train, local, torch: rate over PyTorch with Pillow"]
        assert "FFCV, pixels" not in over_pillow.found

    def test_not_judged_where_the_data_were_there_before(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        for run in made.content["runs"]:
            if run["peer"] == "feedstock":
                run["fetched_share"] = 0.95 if run["round"] > 1 else 0.4
        found = judged(made)
        assert "feedstock read only 40% of the data" in found[FASTEST.format("numpy")].verdict
        assert found[FASTEST.format("torch")].reached is False
        assert "read 95% (minimum 40%) of the bytes" in table.rates(made, "pictures-train", "local")

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
        # This goal names the only peer that it concerns.
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
