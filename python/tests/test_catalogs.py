"""Ready catalogs: published in a folder, taken by data sets and workers."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from served import worker

import feedstock as fs


def stages(imagenet: Path, **options: object) -> set[str]:
    """Opens the data set and returns what was done besides listing it."""
    reported: set[str] = set()
    dataset = fs.Dataset(imagenet, progress=lambda *now: reported.add(now[0]), **options)
    assert len(pickle.loads(pickle.dumps(dataset))) == len(dataset)
    return reported - {"listing"}


def test_a_published_catalog_is_taken_instead_of_building_one(imagenet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fs.Dataset(imagenet, catalog=tmp_path / "one").publish_catalog("shared")
    assert not stages(imagenet, catalog=tmp_path / "other", catalogs_from="shared")
    assert not stages(imagenet, catalog=tmp_path / "other"), "it was copied"
    assert stages(imagenet, catalog=tmp_path / "third", catalogs_from=["beside", tmp_path / "empty"])
    with pytest.raises(fs.ConfigError, match=r"publishing the catalog of .*: its catalog is not stored"):
        fs.Dataset(imagenet, catalog="memory").publish_catalog("shared")
    with pytest.raises(
        fs.ConfigError, match=r"catalogs_from must be a folder or a list of folders; got \[1\]"
    ):
        fs.Dataset(imagenet, catalogs_from=[1])


def test_a_worker_takes_a_published_catalog(imagenet, tmp_path, monkeypatch):
    fs.Dataset(imagenet, catalog=tmp_path / "one").publish_catalog(tmp_path / "shared")
    monkeypatch.setenv("FEEDSTOCK_CACHE", str(tmp_path / "worker"))
    serving = worker(imagenet, catalogs_from=[str(tmp_path / "shared")])
    pipeline = (
        fs.Dataset(imagenet, catalog="memory").map("image", fs.decode_image(), fs.resize((8, 8))).batch(8)
    )
    rows = sum(batch.num_rows for batch in pipeline.loader(workers=serving.address))
    assert rows == len(fs.Dataset(imagenet))
    published = {file.name for file in (tmp_path / "shared").glob("*/*.arrow")}
    copied = {file.name for file in (tmp_path / "worker" / "catalogs").glob("*/*.arrow")}
    assert published
    assert published == copied
    serving.stop()
