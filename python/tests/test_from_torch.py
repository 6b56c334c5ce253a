"""``fs.from_torch``: items, order, random numbers, structure, and what it refuses."""

from __future__ import annotations

import json
import logging
import pickle
import random
from pathlib import Path
from typing import Any

import map_style
import numpy as np
import pytest
from map_style import LENGTH, Augmented, Made

import feedstock as fs
from feedstock._sources.map_style import _indexes

# The state after two batches of ``fs.from_torch(Made(pair), identity="a").shuffle(seed=1).batch(8)`` of commit
# 9acf9e9d, whose indexes were a file that pyarrow wrote.
SAVED: dict[str, Any] = {
    "version": 1,
    "epoch": 0,
    "position": 16,
    "cursor": {
        "fingerprint": {
            "version": 1,
            "catalog": 8454586233652724111,
            "blocks": 5059539263270281695,
            "filter": 0,
            "shuffle": "full",
            "seed": 1,
            "lanes": 48,
            "window": 1,
        },
        "epoch": 0,
        "position": 16,
        "ops": 13548015426737163567,
    },
    "map_rows": [["Made", "a"]],
}


def batches(pipeline: fs.Pipeline[Any], output: str = "numpy", **options: Any) -> list[Any]:
    with pipeline.epochs(1).loader(output=output, **options) as loader:
        return list(loader)


@pytest.fixture(scope="module")
def augmented() -> fs.Pipeline[Any]:
    return fs.from_torch(Augmented(), num_workers=2).shuffle(seed=3).batch(global_batch_size=8)


@pytest.fixture(scope="module")
def whole(augmented: fs.Pipeline[Any]) -> list[Any]:
    """Returns the batches of an epoch of one rank."""
    return batches(augmented)


def words_of(seed: int, epoch: int, sample: int) -> list[int]:
    """Returns the numbers that seed an item, as ``docs/python/sources.md`` defines them."""
    entropy = [w for value in (seed, epoch, sample, 0) for w in (value % 2**32, value // 2**32)]
    return np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(4).tolist()


def expected_item(index: int, seed: int, epoch: int = 0) -> np.ndarray:
    first, second, *_ = words_of(seed, epoch, index)
    random.seed(first)
    np.random.seed([second % 2**32, second // 2**32])
    return Augmented()[index][0]


@pytest.mark.parametrize("make", ["mixed", "nested", "alone", "listed", "pair"])
def test_batches_are_those_of_a_data_loader(make: str) -> None:
    torch = pytest.importorskip("torch")
    dataset = Made(getattr(map_style, make), 10)
    expected = list(torch.utils.data.DataLoader(dataset, 5))
    found = batches(fs.from_torch(dataset, num_workers=1).batch(5), "torch")
    assert len(found) == 2
    for batch, theirs in zip(found, expected, strict=True):
        assert_equal(batch, theirs)


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        added = {"sample_ids", "valid"} & found.keys()
        assert found.keys() - added == expected.keys()
        for key, value in expected.items():
            assert_equal(found[key], value)
    elif isinstance(expected, (list, tuple)) and not isinstance(expected[0], str):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, (list, tuple)):
        assert list(found) == list(expected)
    else:
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert bool((found == expected).all())


def test_structures_keep_their_types() -> None:
    (batch,) = batches(fs.from_torch(Made(map_style.listed, 4), num_workers=1).batch(4))
    assert type(batch) is list
    (batch,) = batches(fs.from_torch(Made(map_style.nested, 4), num_workers=1).batch(4))
    assert list(batch) == ["x", "target", "sample_ids", "valid"]
    assert type(batch["target"]["pair"]) is tuple


def test_an_epoch_has_each_item_once_with_its_own_random_numbers(whole: list[Any]) -> None:
    indexes = [index for _, numbers in whole for index in numbers.tolist()]
    assert sorted(indexes) == list(range(LENGTH))
    assert indexes != sorted(indexes)
    for pixels, numbers in whole:
        for row, index in zip(pixels, numbers.tolist(), strict=True):
            assert np.array_equal(row, expected_item(index, seed=3))


@pytest.mark.parametrize("world_size", [2, 4])
def test_global_batches_are_the_same_for_all_world_sizes(
    augmented: fs.Pipeline[Any], whole: list[Any], world_size: int
) -> None:
    ranks = []
    for rank in range(world_size):
        with augmented.epochs(1).loader(rank, world_size, output="numpy") as loader:
            ranks.append(list(loader))
    for step, (pixels, numbers) in enumerate(whole):
        together = {
            index: row.tobytes()
            for rank in ranks
            for row, index in zip(rank[step][0], rank[step][1].tolist(), strict=True)
        }
        assert together == {i: row.tobytes() for row, i in zip(pixels, numbers.tolist(), strict=True)}


def test_a_resume_repeats_the_augmentation(augmented: fs.Pipeline[Any], whole: list[Any]) -> None:
    with augmented.loader(output="numpy") as loader:
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
    with augmented.loader(output="numpy") as loader:
        loader.load_state_dict(state)
        rest = list(loader)
        assert len(rest) == len(whole) - 2
        for (pixels, numbers), (others, theirs) in zip(rest, whole[2:], strict=True):
            assert numbers.tolist() == theirs.tolist()
            assert pixels.tobytes() == others.tobytes()
        pixels, numbers = next(iter(loader))  # of the next epoch
        assert np.array_equal(pixels[0], expected_item(int(numbers[0]), seed=3, epoch=1))
        ledger = loader.ledger()
    assert ledger is not None


def test_torchvision_draws_from_seeded_generators() -> None:
    torch = pytest.importorskip("torch")
    torchvision = pytest.importorskip("torchvision")
    from torchvision.transforms import v2

    chain = v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(16), v2.ColorJitter(0.4), v2.RandomHorizontalFlip()]
    )
    fake = torchvision.datasets.FakeData(8, (3, 24, 24), transform=chain)
    pipeline = fs.from_torch(fake, columns=["image", "label"], num_workers=1).shuffle(seed=9).batch(8)
    (batch,) = batches(pipeline, "torch")
    assert batch["image"].dtype == torch.uint8
    for row, index in zip(batch["image"], batch["sample_ids"].tolist(), strict=True):
        first, second, third, _ = words_of(9, 0, index)
        random.seed(first)
        np.random.seed([second % 2**32, second // 2**32])
        torch.manual_seed(third)
        assert torch.equal(row, fake[index][0])


def test_compositions_of_albumentations_are_seeded() -> None:
    A = pytest.importorskip("albumentations")
    pipeline = fs.from_torch(map_style.Lazy(), num_workers=1).shuffle(seed=5).batch(16)
    found = {}
    with pipeline.epochs(1).loader(output="torch") as loader:
        for step, batch in enumerate(loader):
            found.update(zip(loader.samples_in(step, 0)[0].tolist(), batch.numpy(), strict=True))
    assert len(found) == LENGTH
    chain = A.Compose([A.RandomBrightnessContrast(p=0.7), A.CoarseDropout(p=0.7)])
    for index, picture in found.items():
        fourth = words_of(5, 0, index)[3]
        chain.set_random_state(np.random.default_rng(fourth), random.Random(fourth))
        assert np.array_equal(picture, chain(image=np.full((16, 16, 3), 5 * index, np.uint8))["image"])


def test_compositions_are_found_in_wrappers_functions_and_classes() -> None:
    A = pytest.importorskip("albumentations")
    import functools

    from feedstock._rows.items import with_generators

    flip, blur, crop, rotate, gray = (A.Compose([A.HorizontalFlip()]) for _ in range(5))

    class Wrapped(Made):
        of_class = flip

        def __getitem__(self, index: int) -> Any:
            return gray(image=index)

    dataset = Wrapped(functools.partial(lambda index, chain: chain, chain=blur))
    dataset.steps = [{"train": crop}]
    dataset.closure = lambda: rotate
    dataset.rows = list(range(1000))
    outer = Made(None)
    outer.inner = Made(None)
    outer.inner.dataset = dataset
    assert {id(one) for one in with_generators(outer)} == {
        id(one) for one in (flip, blur, crop, rotate, gray)
    }
    assert list(with_generators(Augmented())) == []


def test_items_of_several_lengths_are_padded() -> None:
    pipeline = fs.from_torch(Made(map_style.of_lengths, 12), num_workers=2).batch(4)
    for step, batch in enumerate(batches(pipeline, "torch")):
        indexes = list(range(4 * step, 4 * step + 4))
        assert batch["sample_ids"].tolist() == indexes
        assert batch["tokens_length"].tolist() == [1 + index % 5 for index in indexes]
        assert batch["tokens"].shape == (4, max(1 + index % 5 for index in indexes))
        for row, index in enumerate(indexes):
            length = 1 + index % 5
            assert batch["tokens"][row].tolist() == [
                *range(length),
                *[0] * (batch["tokens"].shape[1] - length),
            ]
        target = batch["target"]
        assert list(target) == ["boxes", "boxes_length"]
        assert target["boxes_length"].tolist() == [index % 3 for index in indexes]
        assert target["boxes"].shape == (4, 2, 4)
        assert target["boxes"].sum().item() == sum(4 * index * (index % 3) for index in indexes)


def test_functions_get_items_without_padding() -> None:
    def counted(row: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {"count": len(row["tokens"]), "twice": 2 * row["target.boxes"].sum()}

    pipeline = fs.from_torch(Made(map_style.of_lengths, 12), num_workers=1).batch(6)
    for batch in batches(pipeline.map_rows(counted, num_workers=1)):
        assert batch["count"].tolist() == batch["tokens_length"].tolist()
        assert list(batch) == ["tokens", "tokens_length", "target", "sample_ids", "valid", "count", "twice"]


def test_columns_name_the_elements_of_tuples() -> None:
    made = Made(map_style.of_lengths_in_a_tuple, 10)
    (batch,) = batches(fs.from_torch(made, columns=["tokens", "label"], num_workers=1).batch(10))
    assert list(batch) == ["tokens", "tokens_length", "label", "sample_ids", "valid"]
    assert batch["label"].tolist() == list(range(10))
    with pytest.raises(fs.ConfigError, match=r"value '0' has several lengths .*columns="):
        fs.from_torch(made, num_workers=1).batch(10).loader(output="numpy")


def test_many_items_are_requested_one_at_a_time() -> None:
    pipeline = fs.from_torch(map_style.Together(None), num_workers=1).shuffle(seed=2).batch(16)
    for indexes, counts, draws in batches(pipeline):
        assert counts.tolist() == [1] * 16
        for index, draw in zip(indexes.tolist(), draws.tolist(), strict=True):
            assert draw == random.Random(words_of(2, 0, index)[0]).random()


def test_selections_and_pickles() -> None:
    dataset = fs.from_torch(Made(map_style.pair), num_workers=1)
    assert len(dataset) == LENGTH
    part = dataset.filter("index >= 10").take(6)
    (batch,) = batches(pickle.loads(pickle.dumps(part.batch(6))))
    assert batch[1].tolist() == list(range(10, 16))
    assert repr(part) == "from_torch(Made), 6 samples"
    assert repr(part.batch(6)).startswith("Pipeline(from_torch(Made), 6 samples).batch(")


def test_identity_is_the_class_the_length_and_the_argument(caplog: pytest.LogCaptureFixture) -> None:
    def state(**options: Any) -> Any:
        with (
            fs.from_torch(**options, num_workers=1).shuffle(seed=1).batch(8).loader(output="numpy") as loader
        ):
            next(iter(loader))
            return loader.state_dict()

    saved = state(dataset=Made(map_style.pair), identity="a")
    with caplog.at_level(logging.WARNING, logger="feedstock"):
        same = fs.from_torch(Made(map_style.pair), identity="a", num_workers=1).shuffle(seed=1).batch(8)
        assert "not verified" not in caplog.text
        with same.loader(output="numpy") as loader:
            loader.load_state_dict(saved)
            assert loader.position == 8
        for changed in (
            fs.from_torch(Made(map_style.pair), identity="b", num_workers=1),
            fs.from_torch(Made(map_style.pair, LENGTH + 1), identity="a", num_workers=1),
            fs.from_torch(map_style.Together(None), identity="a", num_workers=1),
            fs.from_torch(Made(map_style.pair), num_workers=1),
        ):
            with (
                changed.shuffle(seed=1).batch(8).loader(output="numpy") as loader,
                pytest.raises(fs.ConfigError),
            ):
                loader.load_state_dict(saved)
    assert "from_torch(Made) of 48 items is identified by its class name" in caplog.text
    assert "not verified" in caplog.text


@pytest.mark.parametrize("length", [1, 48, 65_536, 200_001])
def test_indexes_have_the_identity_of_the_files_that_they_were(tmp_path: Path, length: int) -> None:
    pa = pytest.importorskip("pyarrow")
    uri = _indexes("Made", length, "a")
    schema = pa.schema([pa.field("index", pa.int32(), nullable=False)])
    path = tmp_path / uri.rpartition("/")[2]
    with pa.ipc.new_file(str(path), schema) as writer:
        for start in range(0, length, 65_536):
            part = np.arange(start, min(start + 65_536, length), dtype=np.int32)
            writer.write_batch(pa.record_batch([pa.array(part)], schema=schema))
    found = []
    for place in (uri, path):
        dataset = fs.Dataset(place, layout="ipc", progress=False)
        assert len(dataset) == length
        with dataset.shuffle(seed=1).batch(1).loader(output="numpy") as loader:
            found.append(({**next(iter(loader))}["index"].tolist(), loader.state_dict()))
    assert found[0] == found[1]


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FEEDSTOCK_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    assert len(batches(fs.from_torch(Made(map_style.pair), num_workers=1).batch(8))) == LENGTH // 8
    assert list(tmp_path.iterdir()) == []


def test_positions_saved_before_indexes_were_computed_load() -> None:
    pipeline = fs.from_torch(Made(map_style.pair), identity="a", num_workers=1).shuffle(seed=1).batch(8)
    whole = batches(pipeline)
    with pipeline.epochs(1).loader(output="numpy") as loader:
        loader.load_state_dict({**SAVED, "cursor": json.dumps(SAVED["cursor"])})
        rest = list(loader)
    assert len(rest) == len(whole) - 2
    for (_, numbers), (_, expected) in zip(rest, whole[2:], strict=True):
        assert numbers.tolist() == expected.tolist()


def test_bad_items() -> None:
    pipeline = fs.from_torch(Made(map_style.sometimes_bad), num_workers=1).batch(8)
    with pytest.raises(fs.SampleError, match=r"sample 3 of epoch 0: from_torch\(Made\) raised ValueError"):
        batches(pipeline)
    with pipeline.epochs(1).on_error("skip", max_fraction=0.2).loader(output="numpy") as loader:
        found = list(loader)
        assert loader.skip_report()["count"] == 5
    first = found[0]
    assert first["valid"].tolist() == [index != 3 for index in range(8)]
    assert first["x"].tolist() == [0, 1, 2, 2, 4, 5, 6, 7]
    assert first["text"] == ["0", "1", "2", "2", "4", "5", "6", "7"]
    with pytest.raises(
        fs.SampleError, match=r"sample 20 .*float64 \[3\], and the first items have float64 \[2\]"
    ):
        batches(fs.from_torch(Made(map_style.once_longer), num_workers=1).batch(8))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("always_bad", r"4 items, all of which fail. Item 0 raised ValueError"),
        ("of_two_lengths", r"value 'x' of item 0 is float64 \[1, 1\], and that of item"),
        ("missing", r"returned None at '1'"),
        ("other_keys", r"item 0 has the values \['x'\], and item 15 \['y'\]"),
        ("numbered", r"a dict with the key 1"),
        ("reserved", r"returned the value 'valid', which the loader sets"),
    ],
)
def test_items_that_have_no_place_in_a_batch(make: str, message: str) -> None:
    with pytest.raises(fs.ConfigError, match=message):
        fs.from_torch(Made(getattr(map_style, make)), num_workers=1).batch(4).loader(output="numpy")


def test_refused_data_sets_and_arguments() -> None:
    torch = pytest.importorskip("torch")

    class Endless(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(())

    for dataset, message in (
        (Endless(), "IterableDataset"),
        (iter([]), "__len__ and __getitem__"),
        (Made(map_style.pair, 0), "no items"),
        (fs.from_items([1]), "__len__ and __getitem__"),
    ):
        with pytest.raises(fs.ConfigError, match=message):
            fs.from_torch(dataset)
    made = Made(map_style.pair)
    for arguments in ({"columns": ["a", "a"]}, {"columns": "ab"}, {"columns": ["valid"]}, {"num_workers": 0}):
        with pytest.raises(fs.ConfigError):
            fs.from_torch(made, **arguments)
    with pytest.raises(fs.ConfigError, match="2 elements, and columns= has 1 names"):
        fs.from_torch(made, columns=["a"], num_workers=1).batch(4).loader(output="numpy")
    with pytest.raises(fs.ConfigError, match=r"cannot send Locked to other processes: it uses 'lock'"):
        fs.from_torch(map_style.Locked()).batch(4).loader(output="numpy")


def test_what_pipelines_of_items_cannot_do() -> None:
    dataset = fs.from_torch(Made(map_style.pair), num_workers=1)
    with pytest.raises(fs.ConfigError, match='output="numpy" or "torch"'):
        dataset.batch(4).loader()
    with pytest.raises(fs.ConfigError, match="map runs ops on stored columns"):
        dataset.map("0", fs.decode_image())
    with pytest.raises(fs.ConfigError, match="ConcatDataset"):
        fs.Dataset.concat([dataset, dataset.named("other")])
    with pytest.raises(fs.ConfigError, match="ConcatDataset"):
        fs.Dataset.mix([(dataset, 1.0)])
    with pytest.raises(fs.ConfigError, match="__getitem__"):
        dataset.columns(["index"])
    with pytest.raises(fs.ConfigError, match="rename their keys in __getitem__"):
        dataset.rename({"index": "number"})
    stored = fs.from_items([{"index": 1, "stars": 5}])
    for left, right in [(dataset, stored), (stored, dataset)]:
        with pytest.raises(fs.ConfigError, match=r"join reads stored columns.*from_torch\(Made\)"):
            left.join(right, on="index")
    with pytest.raises(fs.ConfigError, match="columns="):
        dataset.batch(4).map_rows(lambda row, rng: {"x": 1}, num_workers=1).loader(output="numpy")
