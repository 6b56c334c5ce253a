"""``decoder_memory``: large samples borrow from the budget, or are bad by options alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from synthetic import noise_images

import feedstock as fs

MIB = 1 << 20


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns 12 PNGs of 1000 × 1000 random pixels, written by Pillow: 3 MB each, encoded and decoded."""
    return noise_images(tmp_path_factory.mktemp("noise"), 12, 1000, ".png")


def pipeline(folder: Path) -> fs.Pipeline:
    return fs.Dataset(folder).map("image", fs.decode_image(), fs.resize((16, 16))).batch(2).epochs(1)


def images(pipeline: fs.Pipeline) -> list[np.ndarray]:
    with pipeline.loader() as loader:
        return [np.array(batch["image"]) for batch in loader]


def test_large_samples_borrow_from_the_budget_and_no_pixel_changes(noise: Path) -> None:
    usual = images(pipeline(noise))
    borrowed = images(pipeline(noise).options(decoder_memory=MIB, budget_bytes=14 * MIB))
    assert len(usual) == 6
    np.testing.assert_array_equal(np.stack(borrowed), np.stack(usual))


def test_a_sample_that_no_loan_could_hold_is_bad(tmp_path: Path) -> None:
    """A file of a few kB takes 12 MB decoded: more than 1 MiB of ``decoder_memory`` plus half of 8 MiB."""
    (tmp_path / "class").mkdir()
    Image.new("RGB", (2000, 2000)).save(tmp_path / "class" / "flat.png")
    data = fs.Dataset(tmp_path).map("image", fs.decode_image(), fs.resize((16, 16))).batch(1)
    with pytest.raises(fs.SampleError, match=r"raise decoder_memory or budget_bytes") as raised:
        images(data.epochs(1).options(decoder_memory=MIB, budget_bytes=8 * MIB))
    assert raised.value.column == "image"
    assert str(raised.value.uri).endswith("flat.png")
    assert 'on_error="skip"' in str(raised.value) or '.on_error("skip")' in str(raised.value)
    assert len(images(data.epochs(1))) == 1


@pytest.mark.parametrize("wrong", [-1, 1.5, "64MB"])
def test_it_is_a_number_of_bytes(noise: Path, wrong: object) -> None:
    with pytest.raises(fs.ConfigError, match="decoder_memory must be an integer"):
        pipeline(noise).options(decoder_memory=wrong)  # type: ignore[arg-type]
