"""Tables, plots and the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from harness import __main__ as command
from harness import method, page, stored, table
from known import BUILD, results

DOCUMENTS = Path(__file__).parents[3] / "docs"


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
        # Compared with feedstock with tensors, since it delivers tensors.
        assert lines[6].startswith("| PyTorch DataLoader, Pillow | torch | 400 ±0% | 3.75 |")
        assert lines[6].endswith("| 5 | agree, 0.10 of 1.50 |")
        assert "- FFCV: cannot be installed: error: no compiler" in text
        assert (
            "other processes used 0.25 and 0.25 cores, 2.0% and 2.0% of the machine's time was stolen" in text
        )
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

    def test_who_ran_later_is_told(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        for run in made.content["runs"]:
            hour = 12 if run["peer"] == "dali" else run["round"]
            run["began"] = f"2026-01-01T{hour:02}:00:00Z"
        assert table.beside(made, "pictures-train", "local").endswith(
            " Measured later, in separate rounds: DALI, CPU."
        )

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
        assert "server CPU-s per run" in lines[0]
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
        # Once more, from the file next to the page.
        page.write(stored.Results(tmp_path / "docs" / "benchmarks" / "results.json"), at)
        assert at.read_text() == text

    def test_the_documents_page_is_what_its_results_make(self, tmp_path: Path) -> None:
        kept = DOCUMENTS / "benchmarks" / "results.json"
        page.write(stored.Results(kept), tmp_path / "benchmarks.md")
        assert (tmp_path / "benchmarks.md").read_text() == (DOCUMENTS / "benchmarks.md").read_text()

    def test_method_speaks_of_what_was_run(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        said = " ".join(method.sentences(made))
        assert "56 batches that the consumer takes in the middle of the first epoch" in said
        assert "profile release" in said
        assert "Not measured: pictures-train from S3, pictures-eval from local files, " in " ".join(
            method.limits(made)
        )
        for absent in ("S3", "paused", "Resuming", "every row", "native formats"):
            assert absent not in said
        made.add(
            stored.Key("pictures-train", "s3", "resume", "feedstock", 1), {"resume_s": 1.0, "right": True}
        )
        assert "Resuming" in " ".join(method.sentences(made))

    def test_method_tells_which_machine_measured_what(self, tmp_path: Path) -> None:
        made = results(tmp_path)
        assert "Several machines" not in " ".join(method.sentences(made))
        made.built(BUILD | {"kernel": "7"})
        made.add(stored.Key("speech", "s3", "steady", "feedstock", 1), {"rate": 1.0})
        said = " ".join(method.sentences(made))
        assert "x, Linux 6: rates of pictures-train, local. x, Linux 7: rates of speech, s3." in said

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
        # Without --out it changes nothing.
        before = sorted(tmp_path.rglob("*"))
        monkeypatch.setattr(sys, "argv", [*words[:-2], "--results", str(made.path)])
        assert command.main() == 0
        assert sorted(tmp_path.rglob("*")) == before
        monkeypatch.setattr(sys, "argv", [*words, "--results", str(tmp_path / "no.json")])
        assert command.main() == 2
        assert "holds no runs" in capsys.readouterr().err
