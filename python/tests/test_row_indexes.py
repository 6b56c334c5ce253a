"""``row_index_bytes``: crops of JPEGs are decoded faster from the second epoch on, and are the same pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic import noise_images

import feedstock as fs


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns 8 baseline JPEGs of 300 × 300 pixels, written by Pillow."""
    return noise_images(tmp_path_factory.mktemp("photos"), 8, 300, ".jpg")


def pipeline(folder: Path) -> fs.Pipeline:
    crop = fs.random_resized_crop(64)
    return fs.Dataset(folder).map("image", fs.decode_image(), crop).shuffle(seed=3).batch(4).epochs(3)


def images(pipeline: fs.Pipeline) -> np.ndarray:
    with pipeline.loader() as loader:
        return np.stack([np.array(batch["image"]) for _ in range(3) for batch in loader])


def test_pixels_do_not_depend_on_the_bound(photos: Path) -> None:
    without = images(pipeline(photos).options(row_index_bytes=0))
    assert len(without) == 6
    for row_index_bytes in (None, 1, 2**20):
        found = images(pipeline(photos).options(row_index_bytes=row_index_bytes))
        np.testing.assert_array_equal(found, without)


@pytest.mark.parametrize("wrong", [-1, 1.5, "64MB"])
def test_it_is_a_number_of_bytes(photos: Path, wrong: object) -> None:
    with pytest.raises(fs.ConfigError, match="row_index_bytes must be an integer"):
        pipeline(photos).options(row_index_bytes=wrong)  # type: ignore[arg-type]
