"""``take``, ``skip``, ``select`` and ``split_by``: what they keep, pickles, states, workers, bad input."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from served import worker

import feedstock as fs


@pytest.fixture(scope="module")
def data(imagenet: Path) -> fs.Dataset:
    return fs.Dataset(imagenet).columns(["label"])


def ids(dataset: fs.Dataset) -> list[int]:
    """Returns the ids of an epoch in catalog order."""
    return [int(sample) for batch in dataset.batch(len(dataset)).loader() for sample in batch.sample_ids]


SELECTIONS: list[tuple[Callable[[fs.Dataset], fs.Dataset], list[int] | None]] = [
    (lambda data: data.take(7), list(range(7))),
    (lambda data: data.take(1_000), list(range(200))),
    (lambda data: data.skip(195), list(range(195, 200))),
    (lambda data: data.skip(0), list(range(200))),
    (lambda data: data.skip(5).take(3), [5, 6, 7]),
    (lambda data: data.filter("sample_id % 10 = 3").take(2), [3, 13]),
    (lambda data: data.take(20).filter("sample_id % 10 = 3"), [3, 13]),
    (lambda data: data.select({170, 4, 9}), [4, 9, 170]),
    (lambda data: data.select(np.array([170, 4, 9], dtype=np.int32)).skip(1), [9, 170]),
    (lambda data: data.split_by("label", {"train": 0.7, "val": 0.3}, 4)["val"], None),
]


@pytest.mark.parametrize(("select", "expected"), SELECTIONS)
def test_selections_survive_pickling_resumes_and_other_world_sizes(data, select, expected) -> None:
    chosen = select(data)
    kept = ids(chosen)
    assert len(chosen) == len(kept)
    assert expected is None or kept == expected
    again = pickle.loads(pickle.dumps(chosen))
    assert ids(again) == kept

    pipeline = chosen.shuffle(seed=3).batch(global_batch_size=2, tail="pad")
    with pipeline.loader() as loader:
        first = next(iter(loader)).sample_ids.tolist()
        state = loader.state_dict()
    rest = []
    for rank in range(2):
        loader = again.shuffle(seed=3).batch(global_batch_size=2, tail="pad").loader(rank, 2)
        loader.load_state_dict(state)
        rest += [sample for batch in loader for sample in batch.sample_ids[batch.valid].tolist()]
    epochs = 1 if len(kept) > 2 else 2  # the first batch may be a whole epoch
    assert sorted(first + rest) == sorted(epochs * kept)


def test_states_of_other_selections_are_refused(data) -> None:
    def loader(chosen: fs.Dataset) -> fs.Loader:
        return chosen.shuffle(seed=3).batch(2).loader()

    state = loader(data.take(50)).state_dict()
    for other, shown in [
        (data, "all samples"),
        (data.take(51), r"take\(51\)"),
        (data.filter("label >= 0"), "filter"),
        (data.skip(150), r"skip\(150\)"),
        (data.select(range(50)), r"select\(50:"),
    ]:
        with pytest.raises(fs.ConfigError, match=rf"its selection is take\(50\), this pipeline's is {shown}"):
            loader(other).load_state_dict(state)
    parts = data.split_by("label", {"train": 0.7, "val": 0.3})
    with pytest.raises(fs.ConfigError, match="its filter is"):
        loader(parts["train"]).load_state_dict(loader(parts["val"]).state_dict())


def test_splits_have_each_key_in_one_part(data) -> None:
    parts = data.split_by("label", {"train": 0.6, "val": 0.2, "test": 0.2}, seed=11)
    assert list(parts) == ["train", "val", "test"]
    labels = {
        name: {label for batch in part.batch(1).loader() for label in batch["label"].numpy().tolist()}
        for name, part in parts.items()
    }
    assert sorted(sample for part in parts.values() for sample in ids(part)) == list(range(200))
    assert sum(map(len, labels.values())) == len(set.union(*labels.values()))
    number = data.sql("select feedstock_split('speaker-17', 1) as n")
    pa = pytest.importorskip("pyarrow")
    assert pa.table(number)["n"].to_pylist() == [0.6761595422746257]  # python-xxhash has the same


def drawn(dataset: fs.Dataset) -> Counter[int]:
    return Counter(ids(dataset))


def test_weights_draw_samples_by_their_share(data) -> None:
    weighted = data.weights("case when sample_id < 100 then 3 else sample_id % 2 end", 700)
    assert len(weighted) == 700
    counts = drawn(weighted)
    assert counts == {**dict.fromkeys(range(100), 6), **dict.fromkeys(range(101, 200, 2), 2)}
    assert drawn(pickle.loads(pickle.dumps(weighted))) == counts
    assert set(drawn(data.take(50).weights("1")).values()) == {1}

    pipeline = weighted.shuffle(seed=3).batch(global_batch_size=32, tail="pad")
    with pipeline.loader() as loader:
        before = next(iter(loader)).sample_ids.tolist()
        state = loader.state_dict()
    after: list[int] = []
    for rank in range(3):
        loader = pipeline.loader(rank, 3)
        loader.load_state_dict(state)
        after += [sample for batch in loader for sample in batch.sample_ids[batch.valid].tolist()]
    assert Counter(before + after) == counts


def test_balanced_classes_have_equal_draws(data) -> None:
    skewed = data.filter("label < 40 or label % 3 = 0")
    labels = {
        int(sample): label
        for batch in skewed.batch(1).loader()
        for sample, label in zip(batch.sample_ids, batch["label"].numpy().tolist(), strict=True)
    }
    counts = drawn(skewed.balanced("label"))
    assert counts.keys() == labels.keys()
    draws = Counter(labels[sample] for sample in counts.elements())
    assert set(draws.values()) == {max(Counter(labels.values()).values())}


def test_draws_of_a_sample_are_augmented_differently(imagenet) -> None:
    image = fs.Dataset(imagenet, catalog="memory").select([3]).weights("1", 8)
    pipeline = image.map("image", fs.decode_image(), fs.random_resized_crop(16)).shuffle(seed=1).batch(8)
    batch = next(iter(pipeline.loader()))
    assert batch.sample_ids.tolist() == [3] * 8
    assert len({bytes(row) for row in batch["image"].numpy()}) == 8
    serving = worker(imagenet)
    made = next(iter(pipeline.loader(workers=serving.address)))
    assert (made["image"].numpy() == batch["image"].numpy()).all()
    serving.stop()


def test_workers_open_the_same_selection(imagenet) -> None:
    chosen = fs.Dataset(imagenet, catalog="memory").select(range(0, 200, 3)).skip(4)
    pipeline = chosen.map("image", fs.decode_image(), fs.random_resized_crop(8)).shuffle(seed=2).batch(16)
    serving = worker(imagenet)
    alone = [(batch.sample_ids.tolist(), bytes(batch["image"].numpy())) for batch in pipeline.loader()]
    made = [
        (batch.sample_ids.tolist(), bytes(batch["image"].numpy()))
        for batch in pipeline.loader(workers=serving.address)
    ]
    serving.stop()
    assert made == alone


@pytest.mark.parametrize(
    ("select", "message"),
    [
        (lambda data: data.take(0), r"n must be an integer >= 1; got 0"),
        (lambda data: data.take(-3), r"n must be an integer >= 1; got -3"),
        (lambda data: data.take(1.5), r"n must be an integer >= 1; got 1\.5"),
        (lambda data: data.skip(-1), r"n must be an integer >= 0; got -1"),
        (lambda data: data.skip(200), r"skip\(200\) keeps none of the 200 samples"),
        (lambda data: data.select([]), "select: there must be at least 1 id"),
        (lambda data: data.select([3, 1, 3]), "sample 3 is listed twice"),
        (lambda data: data.select([5, 200]), "there is no sample 200; the ids are 0 to 199"),
        (lambda data: data.take(5).select([5]), "sample 5 is left out by an earlier step"),
        (lambda data: data.select([-1]), r"each of ids must be an integer >= 0; got -1"),
        (lambda data: data.select(np.array([4, -1])), r"each of ids must be an integer >= 0; got -1"),
        (lambda data: data.select([0.5]), r"each of ids must be an integer >= 0; got 0\.5"),
        (lambda data: data.select("17"), r"ids must be a list of integers >= 0; got '17'"),
        (lambda data: data.select(17), r"ids must be a list of integers >= 0; got 17"),
        (lambda data: data.split_by("label", {"a": 0.9, "b": 0.2}), r"a 0\.9, b 0\.2 sum to 1\.1"),
        (
            lambda data: data.split_by("label", {"a": 1.0, "b": 0}),
            r"the share of b must be a number > 0; got 0",
        ),
        (
            lambda data: data.split_by("label", {"a": "half", "b": 0.5}),
            "the share of 'a' must be a number; got 'half'",
        ),
        (lambda data: data.split_by("label", {1: 0.5, "b": 0.5}), "a name in shares must be a string; got 1"),
        (
            lambda data: data.split_by("label", [0.5, 0.5]),
            r"shares must be a dict of shares by name; got \[0\.5",
        ),
        (lambda data: data.split_by("label", {}), "at least 1 part"),
        (lambda data: data.split_by("labl", {"a": 0.5, "b": 0.5}), "there is no column `labl`"),
        (lambda data: data.split_by("sample_id", {"a": 0.5, "b": 0.5}), "sample_id cannot be part of a key"),
        (
            lambda data: data.split_by("'one'", {"a": 0.5, "b": 0.5}),
            "split_by: the part (a|b), the filter .*keeps none of the 200",
        ),
        (lambda data: data.split_by("label", {"a": 0.5, "b": 0.5}, seed=-1), r"seed must be an integer >= 0"),
        (lambda data: fs.Dataset.mix([(data, 1.0)]).take(5), "call take on its parts"),
        (lambda data: data.weights("label", 0), "samples must be an integer >= 1; got 0"),
        (lambda data: data.weights("label", -2), "samples must be an integer >= 1; got -2"),
        (
            lambda data: data.weights("label - 5"),
            r"the weight of .* is -\d+; weights must be finite numbers >= 0",
        ),
        (lambda data: data.weights("nullif(sample_id, 7)"), r"the weight of .* row 7 is null or NaN"),
        (lambda data: data.weights("0"), "all 200 weights are 0"),
        (lambda data: data.weights("'heavy'"), "weights are numbers"),
        (lambda data: data.weights("wieght"), "there is no column `wieght`"),
        (lambda data: data.weights("1").take(3), "call take before weights or balanced"),
        (lambda data: data.balanced("nullif(label, label)"), "the class of .* is null"),
        (lambda data: data.balanced("label + 0.5"), "classes are texts, integers or flags"),
        (lambda data: fs.Dataset.concat([data.balanced("label")]), "cannot be part of a concatenation"),
    ],
)
def test_bad_arguments_are_named(data, select, message) -> None:
    with pytest.raises(fs.ConfigError, match=message):
        select(data)
