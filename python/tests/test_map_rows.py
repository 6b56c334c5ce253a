"""Functions of rows: values, random numbers, order, state, and that nothing but the sample matters."""

from __future__ import annotations

import json
import logging
import os
import pickle
import time
from typing import Any

import numpy as np
import pytest
from served import worker

import feedstock as fs

IMAGE = fs.tensor("float32", (8, 8, 3))


def jittered(row, rng):
    """Changes pixels by the sample's random numbers, and states what it drew."""
    gain = np.float32(rng.uniform(0.5, 1.5))
    return {"image": row["image"].astype(np.float32) * gain, "gain": gain}


@pytest.fixture(scope="module")
def plain(imagenet):
    images = (
        fs.Dataset(imagenet).columns(["image", "label"]).map("image", fs.decode_image(), fs.resize((8, 8)))
    )
    return images.shuffle(seed=3).batch(global_batch_size=20)


@pytest.fixture(scope="module")
def labels(imagenet):
    return fs.Dataset(imagenet).columns(["label"]).shuffle(seed=3).batch(20)


def by_sample(pipeline: fs.Pipeline, name: str, ranks: int = 1, **options: Any) -> dict[int, bytes]:
    """Returns the bytes of column ``name`` by sample id, of an epoch of all ranks."""
    found: dict[int, bytes] = {}
    for rank in range(ranks):
        with pipeline.loader(rank, ranks, output="numpy", **options) as loader:
            for batch in loader:
                found.update(
                    zip(batch["sample_ids"].tolist(), (value.tobytes() for value in batch[name]), strict=True)
                )
    assert len(found) == 200
    return found


def reference_generator(seed: int, epoch: int, sample: int, number: int) -> np.random.Generator:
    """Returns the generator as ``docs/python/rows.md`` defines it."""
    words = [word for value in (seed, epoch, sample, number) for word in (value % 2**32, value // 2**32)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


@pytest.mark.parametrize("executor", ["process", "thread"])
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_results_are_those_of_plain_calls(plain, executor, output):
    if output == "torch":
        pytest.importorskip("torch")
    mapped = plain.map_rows(jittered, executor=executor, num_workers=2)
    with plain.epochs(1).loader(output="numpy") as before, mapped.loader(output=output) as after:
        assert len(after) == 10
        for expected, batch in zip(before, after, strict=True):
            found = {name: np.asarray(column) for name, column in batch.items()}
            assert found.keys() == {"image", "label", "sample_ids", "valid", "gain"}
            assert found["sample_ids"].tolist() == expected["sample_ids"].tolist()
            assert found["label"].tolist() == expected["label"].tolist()
            assert found["valid"].all()
            for index, sample in enumerate(expected["sample_ids"].tolist()):
                row = {"image": expected["image"][index]}
                result = jittered(row, reference_generator(3, 0, sample, 0))
                assert np.array_equal(found["image"][index], result["image"])
                assert found["gain"][index] == result["gain"]
        ledger = after.ledger()
    assert ledger is not None
    assert ledger["exact"]
    assert (ledger["delivered"], ledger["substituted"]) == (200, 0)


def test_the_bytes_depend_on_the_sample_only(plain):
    """They are the same for any number of processes, threads and ranks."""
    declared = {"image": IMAGE, "gain": fs.tensor("float32")}
    one = by_sample(plain.map_rows(jittered, outputs=declared, num_workers=1), "image")
    assert by_sample(plain.map_rows(jittered, outputs=declared, num_workers=3), "image") == one
    assert by_sample(plain.map_rows(jittered, outputs=declared, num_workers=2), "image", ranks=2) == one
    assert by_sample(plain.map_rows(jittered, executor="thread", num_workers=3), "image") == one
    assert by_sample(plain.seed(4).map_rows(jittered, executor="thread"), "image") != one


def test_rows_of_workers_have_the_same_bytes(plain, imagenet):
    mapped = plain.map_rows(jittered, num_workers=2)
    serving = worker(imagenet)
    try:
        assert by_sample(mapped, "image", workers=serving.address) == by_sample(mapped, "image")
    finally:
        serving.stop()


def test_a_resume_in_mid_epoch_continues_with_the_same_bytes(plain):
    mapped = plain.map_rows(jittered, executor="process", num_workers=2)
    whole = by_sample(mapped, "image")
    seen: dict[int, bytes] = {}

    def take(batch):
        seen.update(zip(batch["sample_ids"].tolist(), map(np.ndarray.tobytes, batch["image"]), strict=True))

    with mapped.loader(output="numpy") as loader:
        batches = iter(loader)
        for _ in range(3):
            take(next(batches))
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["position"] == 60
    for rank in range(2):  # another world size
        with mapped.loader(rank, 2, output="numpy") as loader:
            loader.load_state_dict(state)
            for batch in loader:
                assert not seen.keys() & set(batch["sample_ids"].tolist())
                take(batch)
    assert seen == whole


def test_epochs_and_functions_draw_differently(labels):
    def draw(row, rng):
        return {f"drawn_{'first' not in row}": rng.integers(2**62), "first": True}

    mapped = labels.map_rows(draw, executor="thread").map_rows(
        lambda row, rng: {"second": rng.integers(2**62)}, executor="thread"
    )
    with mapped.loader(output="numpy") as loader:
        epochs = []
        for _ in range(2):
            batches = list(loader)
            epochs.append(
                {
                    int(s): (int(a), int(b))
                    for batch in batches
                    for s, a, b in zip(batch["sample_ids"], batch["drawn_True"], batch["second"], strict=True)
                }
            )
    assert all(first != second for first, second in epochs[0].values())
    assert all(epochs[0][sample] != epochs[1][sample] for sample in epochs[0])
    sample = next(iter(epochs[1]))
    expected = [reference_generator(3, 1, sample, number).integers(2**62) for number in (0, 1)]
    assert list(epochs[1][sample]) == expected


def test_functions_follow_each_other_and_then_those_of_batches(labels):
    mapped = (
        labels.map_rows(lambda row, rng: {"twice": row["label"] * 2}, num_workers=1)
        .map_rows(lambda row, rng: {"label": row["twice"] + np.int64(1)}, executor="thread", num_workers=2)
        .map_python(lambda batch: (batch["label"] - batch["twice"]).tolist())
    )
    assert list(mapped.loader(output="numpy")) == [[1] * 20] * 10


def test_a_function_gets_the_columns_that_it_asks_for(imagenet):
    pipeline = (
        fs.Dataset(imagenet).map("image", fs.decode_image(), fs.resize((4, 4)), output="pixels").batch(20)
    )

    for inputs, expected in (
        (["label"], [("label", "int64")]),
        (["pixels", "label"], [("pixels", "ndarray"), ("label", "int64")]),
        ([], []),
    ):

        def has_these(row, rng, expected=expected):
            return {"it_has": [(name, type(value).__name__) for name, value in row.items()] == expected}

        with pipeline.map_rows(has_these, inputs=inputs, num_workers=1).loader(output="numpy") as loader:
            assert next(iter(loader))["it_has"].all(), inputs


def test_texts_bytes_and_lengths(common_voice):
    """Rows of variable length have no padding, so that they do not depend on the rest of the batch."""
    pipeline = (
        fs.Dataset(common_voice, split="train")
        .map("audio", fs.decode_audio(), fs.resample(8000), output="wave")
        .batch(4)
    )

    def describe(row, rng):
        row["wave"] *= 0.5  # a copy, which may be changed
        text = row["sentence"]
        return {"samples": len(row["wave"]), "letters": len(text), "is_text": isinstance(text, str)}

    with (
        pipeline.epochs(1).loader() as plain,
        pipeline.map_rows(describe, num_workers=2).loader(output="numpy") as loader,
    ):
        different = set()
        for expected, batch in zip(plain, loader, strict=True):
            lengths = expected["wave"].lengths
            assert batch["samples"].tolist() == lengths == batch["wave_length"].tolist()
            assert batch["letters"].tolist() == [len(text) for text in expected["sentence"]]
            assert batch["is_text"].all()
            assert np.array_equal(batch["wave"], expected["wave"].numpy())
            different.update(lengths)
    assert len(different) > 3


def test_a_user_decodes_bytes(imagenet):
    """Encoded columns that no op reads are bytes."""
    import io

    from PIL import Image

    def decoded(row, rng):
        image = Image.open(io.BytesIO(row["image"])).convert("RGB").resize((8, 8))
        return {"pixels": image}

    pipeline = fs.Dataset(imagenet).columns(["image"]).batch(20)
    with pipeline.map_rows(decoded, num_workers=2).loader(output="numpy") as loader:
        batch = next(iter(loader))
    assert batch["pixels"].dtype == np.uint8
    for encoded, pixels in zip(batch["image"], batch["pixels"], strict=True):
        assert np.array_equal(pixels, np.asarray(decoded({"image": encoded}, None)["pixels"]))


def test_python_numbers_take_the_declared_dtype(labels):
    outputs = {
        "f": fs.tensor("float32"),
        "i": fs.tensor("int16"),
        "b": fs.tensor(bool),
        "n": fs.tensor("uint8", (0,)),
    }

    def numbers(row, rng):
        return {"f": 0.5, "i": 7, "b": True, "n": np.zeros(0, np.uint8)}

    with labels.map_rows(numbers, outputs=outputs, num_workers=1).loader(output="numpy") as loader:
        batch = next(iter(loader))
    assert {name: (str(batch[name].dtype), batch[name].shape) for name in outputs} == {
        "f": ("float32", (20,)),
        "i": ("int16", (20,)),
        "b": ("bool", (20,)),
        "n": ("uint8", (20, 0)),
    }
    assert (batch["f"].tolist(), batch["i"].tolist()) == ([0.5] * 20, [7] * 20)


def test_batches_that_are_kept_keep_their_values(labels):
    """Memory of results is used again only after the last view is dropped."""
    mapped = labels.options(slots=16).map_rows(
        lambda row, rng: {"own": np.full(1000, row["label"])}, num_workers=2
    )
    with mapped.loader(output="numpy") as loader:
        kept = [(batch["own"][:, 5:9].T, batch["label"].copy()) for batch in loader]
    for view, label in kept:
        assert np.array_equal(view, np.tile(label, (4, 1)))


def test_padding_is_mapped_as_its_sample(labels):
    padded = labels.batch(60, tail="pad").map_rows(jitter_label, executor="thread")
    with padded.loader(output="numpy") as loader:
        batches = list(loader)
    assert [int(batch["valid"].sum()) for batch in batches] == [60, 60, 60, 20]
    first = dict(zip(batches[0]["sample_ids"].tolist(), batches[0]["noise"].tolist(), strict=True))
    padding = ~batches[3]["valid"]
    assert padding.sum() == 40
    for sample, noise in zip(batches[3]["sample_ids"][padding], batches[3]["noise"][padding], strict=True):
        assert first[int(sample)] == noise


def jitter_label(row, rng):
    return {"noise": rng.random()}


def test_pipelines_travel_and_show_their_functions(plain):
    mapped = plain.map_rows(jittered, num_workers=1, version="2")
    again = pickle.loads(pickle.dumps(mapped))
    assert repr(again) == repr(mapped)
    assert repr(mapped).endswith(".map_rows(jittered)")
    assert by_sample(again, "gain") == by_sample(mapped, "gain")


def test_a_state_keeps_names_and_versions(plain, caplog):
    mapped = plain.map_rows(jittered, executor="thread", version="2")
    with mapped.loader(output="numpy") as loader:
        next(iter(loader))
        state = loader.state_dict()
    assert state["map_rows"] == [["jittered", "2"]]
    with mapped.loader(output="numpy") as loader, caplog.at_level(logging.WARNING):
        loader.load_state_dict(state)
        loader.load_state_dict({name: value for name, value in state.items() if name != "map_rows"})
    assert not caplog.records
    with plain.map_rows(jittered, executor="thread", version="3").loader(output="numpy") as loader:
        loader.load_state_dict(state)
        assert loader.position == 20
    (record,) = caplog.records
    assert "jittered (version '2'); now they are: jittered (version '3')" in record.getMessage()
    with plain.loader() as loader:
        loader.load_state_dict(state)
    assert "now they are: none" in caplog.records[-1].getMessage()


def test_moves_discard_rows_under_way(labels):
    with labels.map_rows(jitter_label, num_workers=2).loader(output="numpy") as loader:
        steps = [batch["noise"].tolist() for batch in loader]
        loader.set_epoch(0)
        loader.seek(7)
        assert next(iter(loader))["noise"].tolist() == steps[7]
        loader.seek(2)
        batches = iter(loader)
        assert [next(batches)["noise"].tolist() for _ in range(3)] == steps[2:5]
        loader.close()
        assert next(iter(loader))["noise"].tolist() == steps[5]


def test_small_batches_keep_all_workers_busy(labels, tmp_path):
    """Batches of one row are under way for every worker, so that three rows wait for each other."""

    def meet(row, rng):
        (tmp_path / str(os.getpid())).touch()
        deadline = time.monotonic() + 60
        while len(os.listdir(tmp_path)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return {"label": row["label"]}

    mapped = labels.batch(1).map_rows(meet, outputs={"label": fs.tensor("int64")}, num_workers=3)
    with mapped.loader(output="numpy") as loader:
        batches = iter(loader)
        assert sum(len(next(batches)["label"]) for _ in range(3)) == 3
