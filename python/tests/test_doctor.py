"""The reports of `Dataset.doctor` about files that other programs read or reject."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

import feedstock as fs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns two classes of images written by Pillow: JPEG, PNG and WebP."""
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for index, suffix in enumerate(("jpg", "png", "webp")):
            Image.new("RGB", (40 + index, 50), (index, 20, 30)).save(tmp_path / label / f"{index}.{suffix}")
    return tmp_path


def test_a_sound_folder_has_no_refusals_and_every_format_is_counted(folder: Path) -> None:
    report = fs.Dataset(folder).doctor()
    (column,) = report["columns"]
    assert (report["examined"], column["refused"], column["refusals"]) == (6, 0, [])
    assert column["formats"] == {"JPEG": 2, "PNG": 2, "WebP": 2}
    assert (column["width"]["min"], column["width"]["max"]) == (40, 42)


def test_what_pillow_refuses_is_listed_by_name_and_what_is_odd_is_noted(folder: Path) -> None:
    cut = folder / "cat" / "0.jpg"
    cut.write_bytes(cut.read_bytes()[:-40])
    with pytest.raises(OSError, match="truncated"):
        Image.open(cut).load()
    Image.new("L", (400, 20)).save(folder / "dog" / "wide.jpg")
    (column,) = fs.Dataset(folder).doctor()["columns"]
    assert [refusal["name"] for refusal in column["refusals"]] == ["cat/0.jpg"]
    assert column["unusual"]["sides of a ratio over 4:1"]["examples"] == ["dog/wide.jpg"]


def test_a_stated_number_of_samples_is_read(folder: Path) -> None:
    for copy in range(100):
        shutil.copy(folder / "dog" / "0.jpg", folder / "dog" / f"copy{copy}.jpg")
    report = fs.Dataset(folder).doctor(samples=80, threads=1)
    assert (report["samples"], report["examined"], report["columns"][0]["examined"]) == (106, 80, 80)


def test_numbers_below_one_are_refused(folder: Path) -> None:
    dataset = fs.Dataset(folder)
    for bad in ({"samples": 0}, {"threads": 0}):
        with pytest.raises(fs.ConfigError):
            dataset.doctor(**bad)
