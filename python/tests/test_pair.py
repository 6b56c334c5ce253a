"""Folders of images and masks that belong together by their names, against Pillow."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3
from PIL import Image
from served import worker

import feedstock as fs

SAMPLES, CLASSES = 30, 11
PAIR = {"image": "images/{}.jpg", "mask": "annotations/{}.png"}
COLUMNS = {"image": fs.image(fs.decode_image(scaled=False)), "mask": fs.mask(fill=0)}
OPS = [fs.random_resized_crop(32, scale=(0.25, 1.0)), fs.horizontal_flip(), fs.color_jitter(0.3)]


def key_of(sample: int) -> str:
    """Returns a name as in ADE20k."""
    split, short = ("validation", "val") if sample % 3 == 0 else ("training", "train")
    return f"{split}/ADE_{short}_{sample:08}"


def write(folder: Path) -> Path:
    """Writes images with masks of a random size, as ADE20k's ``ADEChallengeData2016``."""
    for sample in range(SAMPLES):
        generator = np.random.default_rng(sample)
        small = generator.integers(0, 256, (6, 5, 3), dtype=np.uint8)
        size = 70 + sample, 100 - sample
        image = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
        classes = Image.fromarray(small[..., 0] % CLASSES).resize(size, Image.Resampling.NEAREST)
        for name, picture, options in [
            (PAIR["image"], image, {"quality": 92}),
            (PAIR["mask"], classes, {}),
        ]:
            at = folder / name.format(key_of(sample))
            at.parent.mkdir(parents=True, exist_ok=True)
            picture.save(at, **options)
    (folder / "sceneCategories.txt").write_text("ADE_train_00000001 airport\n")
    return folder


@pytest.fixture(scope="module")
def ade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ade"))


def rows(pipeline: fs.Pipeline, **options: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns copies of each sample's image and mask by its key."""
    found = {}
    for batch in pipeline.shuffle(seed=5).batch(5).epochs(1).loader(output="numpy", **options):
        for row, key in enumerate(batch["key"]):
            found[str(key)] = np.array(batch["image"][row]), np.array(batch["mask"][row])
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for key, values in found.items():
        for one, other in zip(values, expected[key], strict=True):
            assert (one == other).all()


def test_images_and_masks_are_those_of_pillow(ade: Path) -> None:
    data = fs.Dataset(ade, pair=PAIR)
    assert len(data) == SAMPLES
    assert list(data.schema) == ["key", "image", "mask"]
    found = rows(data.map(COLUMNS, fs.center_crop(64)))
    assert found.keys() == {key_of(sample) for sample in range(SAMPLES)}
    for key, (image, mask) in found.items():
        expected = [Image.open(ade / pattern.format(key)) for pattern in PAIR.values()]
        width, height = expected[0].size
        left, top = round((width - 64) / 2), round((height - 64) / 2)
        crops = [np.asarray(whole.crop((left, top, left + 64, top + 64))) for whole in expected]
        assert np.abs(image.astype(int) - crops[0]).max() <= 1
        assert (mask == crops[1]).all()


def test_samples_are_chosen_by_key(ade: Path) -> None:
    validation = fs.Dataset(ade, pair=PAIR).filter("key like 'validation/%'")
    assert len(validation) == SAMPLES // 3
    assert validation.head(1).rows()[0]["key"] == key_of(0)


def test_workers_and_pickled_data_sets_deliver_the_same(ade: Path) -> None:
    data = fs.Dataset(ade, pair=PAIR)
    local = rows(data.map(COLUMNS, OPS))
    assert len(local) == SAMPLES
    assert_same(rows(pickle.loads(pickle.dumps(data)).map(COLUMNS, OPS)), local)
    serving = worker(ade)
    assert_same(rows(data.map(COLUMNS, OPS), workers=serving.address), local)
    serving.stop()


def test_a_resume_in_mid_epoch_delivers_the_rest(ade: Path) -> None:
    pipeline = fs.Dataset(ade, pair=PAIR).map(COLUMNS, OPS).shuffle(seed=5).batch(5).epochs(1)
    expected = rows(fs.Dataset(ade, pair=PAIR).map(COLUMNS, OPS))
    seen: list[str] = []

    def take(batch: Any) -> None:
        for row, key in enumerate(batch["key"]):
            seen.append(str(key))
            assert (batch["image"][row] == expected[str(key)][0]).all()

    loader = pipeline.loader(output="numpy")
    batches = iter(loader)
    for _ in range(3):
        take(next(batches))
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = pipeline.loader(output="numpy")
    resumed.load_state_dict(state)
    for batch in resumed:
        take(batch)
    assert len(seen) == len(set(seen)) == len(expected)


def test_a_bucket_has_the_same_samples(ade: Path, tmp_path: Path) -> None:
    shutil.copytree(ade, tmp_path / "corpus" / "ade")
    with s3.serve(tmp_path):
        data = fs.Dataset("s3://corpus/ade", pair=PAIR)
        assert_same(rows(data.map(COLUMNS, OPS)), rows(fs.Dataset(ade, pair=PAIR).map(COLUMNS, OPS)))


def test_a_sample_that_does_not_decode_is_named_by_all_its_files(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "annotations" / f"{key_of(7)}.png").write_bytes(b"no image")
    pipeline = fs.Dataset(folder, pair=PAIR).map(COLUMNS, OPS).batch(4).epochs(1)
    names = rf"images/{key_of(7)}\.jpg and annotations/{key_of(7)}\.png"
    with pytest.raises(fs.SampleError, match=names):
        list(pipeline.loader(output="numpy"))


def test_incomplete_samples_are_named_or_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "annotations" / f"{key_of(7)}.png").unlink()
    with pytest.raises(
        fs.ConfigError, match=rf"1 of 30 samples lack a file: .*/{key_of(7)}\.jpg without ann"
    ):
        fs.Dataset(folder, pair=PAIR)
    assert len(fs.Dataset(folder, pair=PAIR, bad_shards="skip")) == SAMPLES - 1


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ({"image": "images/a.jpg", "mask": "annotations/{}.png"}, r"must have one \{\}"),
        ({"image": "images/{}.jpg"}, "at least two columns"),
        ({"image": "images/{}.*", "mask": "annotations/{}.png"}, "must not have wildcards"),
        ({}, "pair must map names of columns to patterns"),
        ({"image": Path("images/{}.jpg"), "mask": "{}.png"}, "pair must map names of columns to patterns"),
        (["images/{}.jpg", "{}.png"], "pair must map names of columns to patterns"),
    ],
)
def test_patterns_that_cannot_pair_files_are_refused(ade: Path, pair: Any, expected: str) -> None:
    with pytest.raises(fs.ConfigError, match=expected):
        fs.Dataset(ade, pair=pair)
