"""Trains a text classifier of spaCy on the columns `text` and `label` of a data set, and continues after a stop.

    python spacy_textcat.py --data s3://corpus/reviews --out model

Without `--data`, it makes short synthetic texts. The folder `--out` gets the pipeline of the last checkpoint, for
`spacy.load`, with the optimizer's state and the position in the data.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import spacy
from spacy.language import Language
from spacy.training import Example
from thinc.api import Optimizer

import feedstock as fs

WORDS = {
    "positive": ["good", "fine", "great", "bright", "friendly"],
    "negative": ["bad", "dull", "poor", "broken", "slow"],
}
FILLERS = ["the", "screen", "and", "its", "battery", "of", "this", "phone", "after", "a", "week"]


def sample_data(folder: Path, rows: int = 400) -> str:
    """Writes texts of 5 to 12 words, of which one or two decide the label."""
    draw = random.Random(1)
    labels = [draw.choice(list(WORDS)) for _ in range(rows)]
    texts = []
    for label in labels:
        words = draw.choices(WORDS[label], k=draw.randint(1, 2)) + draw.choices(
            FILLERS, k=draw.randint(4, 10)
        )
        draw.shuffle(words)
        texts.append(" ".join(words))
    pyarrow.parquet.write_table(pa.table({"text": texts, "label": labels}), folder / "texts.parquet")
    return str(folder)


def classifier(labels: list[str]) -> tuple[Language, Optimizer]:
    """Returns an untrained pipeline with its optimizer."""
    spacy.util.fix_random_seed(0)
    nlp = spacy.blank("en")
    nlp.add_pipe("textcat")
    some = [example(nlp, "a text", label, labels) for label in labels]
    return nlp, nlp.initialize(lambda: some)


def example(nlp: Language, text: str, label: str, labels: list[str]) -> Example:
    return Example.from_dict(nlp.make_doc(text), {"cats": {one: float(one == label) for one in labels}})


def examples(nlp: Language, batch: dict[str, Any], labels: list[str]) -> list[Example]:
    """Returns the examples of a batch, without rows that only fill it."""
    rows = zip(batch["text"], batch["label"], batch["valid"], strict=True)
    return [example(nlp, text, label, labels) for text, label, valid in rows if valid]


def train(
    nlp: Language, optimizer: Optimizer, loader: fs.Loader, labels: list[str], epochs: int
) -> Iterator[tuple[int, float]]:
    """Yields the step and the loss after each update, to the end of the last epoch."""
    while loader.epoch < epochs:
        for batch in loader:
            step = loader.epoch * len(loader) + len(loader) - loader.steps_left
            spacy.util.fix_random_seed(step)  # dropout is that of the step, also after a stop
            losses = nlp.update(examples(nlp, batch, labels), sgd=optimizer, drop=0.2)
            yield step, losses["textcat"]


def save(folder: Path, nlp: Language, optimizer: Optimizer, loader: fs.Loader) -> None:
    """Replaces the checkpoint: pipeline, optimizer and position are of the same step."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        new = Path(made, "new")
        nlp.to_disk(new)
        (new / "optimizer.pickle").write_bytes(pickle.dumps((optimizer, layers(nlp))))
        (new / "loader.json").write_text(json.dumps(loader.state_dict()))
        if folder.exists():
            folder.rename(Path(made, "former"))
        new.rename(folder)


def load(folder: Path, nlp: Language, loader: fs.Loader) -> Optimizer:
    """Continues at the checkpoint; returns its optimizer."""
    nlp.from_disk(folder)
    loader.load_state_dict(json.loads((folder / "loader.json").read_text()))
    optimizer, former = pickle.loads((folder / "optimizer.pickle").read_bytes())
    # The optimizer has its state by numbers of layers, which are new in each process.
    now = dict(zip(former, layers(nlp), strict=True))
    for state in ("mom1", "mom2", "nr_update", "last_seen"):
        values = getattr(optimizer, state).items()
        getattr(optimizer, state).update({(now[layer], name): value for (layer, name), value in list(values)})
    return optimizer


def layers(nlp: Language) -> list[int]:
    return [layer.id for _, component in nlp.pipeline for layer in component.model.walk()]


def accuracy(nlp: Language, evaluation: fs.Loader, labels: list[str]) -> float:
    """Returns the share of texts whose likeliest label is right; each text counts once."""
    scores = nlp.evaluate(one for batch in evaluation for one in examples(nlp, batch, labels))
    found: float = scores["cats_micro_f"]  # the same number, since each text has one label
    return found


def main(arguments: list[str] | None = None, on_step: Callable[[int, float], None] | None = None) -> float:
    """Trains, and returns the accuracy on the training data."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="a data set with the columns text and label; default: synthetic texts")
    parser.add_argument("--labels", nargs="+", default=list(WORDS))
    parser.add_argument("--out", type=Path, default=Path("spacy-model"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    options = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory() as folder:
        dataset = fs.Dataset(options.data or sample_data(Path(folder)), columns=["text", "label"])
        pipeline = dataset.shuffle(seed=7).batch(options.batch_size)
        loader = pipeline.loader(output="numpy")
        nlp, optimizer = classifier(options.labels)
        if options.out.exists():
            optimizer = load(options.out, nlp, loader)
        for step, loss in train(nlp, optimizer, loader, options.labels, options.epochs):
            if on_step is not None:
                on_step(step, loss)
            if step % options.save_every == 0 or loader.position == 0:
                save(options.out, nlp, optimizer, loader)
        evaluation = pipeline.batch(options.batch_size, tail="pad").loader(output="numpy", restart=True)
        found = accuracy(nlp, evaluation, options.labels)
        print(f"accuracy {found:.3f}")
        return found


if __name__ == "__main__":
    main()
