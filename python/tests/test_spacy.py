"""spaCy's training loop on text columns: the page, and the program, which is stopped and continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("spacy")

import spacy
from programs import pages

import spacy_textcat

PAGE = Path(__file__).parents[2] / "docs" / "python" / "spacy.md"


class Stopped(Exception):
    """The stop that the test requested."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    return spacy_textcat.sample_data(tmp_path_factory.mktemp("texts"))


def run(texts: str, out: Path, stop: int | None = None) -> tuple[dict[int, float], float]:
    """Trains 3 epochs of 12 steps; returns the losses by step, and the accuracy (0 if stopped after a step)."""
    losses: dict[int, float] = {}

    def on_step(step: int, loss: float) -> None:
        losses[step] = loss
        if step == stop:
            raise Stopped

    try:
        return losses, spacy_textcat.main(["--data", texts, "--out", str(out)], on_step)
    except Stopped:
        return losses, 0.0


def test_the_page(texts: str, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    pages.run(PAGE, {"s3://corpus/reviews": texts}, namespace)
    losses = [float(line) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 3
    assert losses[2] < losses[0] / 10
    nlp = namespace["nlp"]
    assert nlp("this phone is great").cats["positive"] > 0.5 > nlp("its battery is poor").cats["positive"]


def test_the_program_learns_and_continues_with_the_same_losses(texts: str, tmp_path: Path) -> None:
    whole, accuracy = run(texts, tmp_path / "whole")
    assert list(whole) == list(range(1, 37))
    assert accuracy > 0.95
    first, _ = run(
        texts, tmp_path / "broken", stop=17
    )  # 7 steps after the checkpoint of step 10, 5 after an epoch
    assert json.loads((tmp_path / "broken" / "loader.json").read_text())["epoch"] == 1
    second, again = run(texts, tmp_path / "broken")
    assert list(second) == list(range(13, 37))
    assert first | second == whole, "other texts, other dropout, or another state of the optimizer"
    assert again == accuracy
    trained = spacy.load(tmp_path / "broken")
    assert trained("this phone is great").cats["positive"] > 0.5


def test_the_last_texts_are_evaluated_once(texts: str) -> None:
    """The 400 texts fill 12 batches of 32 and half of the thirteenth, whose other rows repeat texts."""
    import feedstock as fs

    counted = 0
    nlp, _ = spacy_textcat.classifier(["positive", "negative"])
    with fs.Dataset(texts).batch(32, tail="pad").loader(output="numpy") as loader:
        for batch in loader:
            counted += len(spacy_textcat.examples(nlp, batch, ["positive", "negative"]))
    assert counted == 400
