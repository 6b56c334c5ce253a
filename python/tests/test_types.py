"""Types that describe dicts and keywords agree with what the package returns and takes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import feedstock as fs
from feedstock._reports import SkippedSample, WarnedSample
from feedstock.ops.audio import LogMelParameters


def keyword_names(function: Any) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}


def test_options_are_the_keywords() -> None:
    assert set(fs.DatasetOptions.__annotations__) | {"layout"} == keyword_names(fs.Dataset.__init__)
    assert set(LogMelParameters.__annotations__) == keyword_names(fs.log_mel)


def test_methods_of_data_sets_and_pipelines_have_equal_parameters() -> None:
    named = {name for name in set(dir(fs.Dataset)) & set(dir(fs.Pipeline)) if not name.startswith("_")}
    shared = {name for name in named if callable(getattr(fs.Dataset, name))}
    assert shared >= {"batch", "map", "shuffle"}
    for name in shared:
        owners = fs.Dataset, fs.Pipeline
        parameters = {str(inspect.signature(getattr(owner, name)).parameters) for owner in owners}
        assert len(parameters) == 1, name


def assert_described(found: Any, kind: Any) -> None:
    """Checks the keys and the types of the plain values of a dict."""
    types = get_type_hints(kind)
    assert found.keys() == types.keys()
    for name, value in found.items():
        if isinstance(types[name], type):
            assert type(value) is types[name], name


def test_reports_have_the_keys_that_their_types_state(imagenet: Path) -> None:
    images = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.resize((8, 8)))
    with images.batch(50).loader() as loader:
        assert loader.stats() == {}
        assert sum(batch.num_rows for batch in loader) == 200
        assert_described(loader.stats(), fs.LoaderStats)
        assert_described(loader.ledger(), fs.Ledger)


def test_skipped_samples_and_warnings(imagenet: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(imagenet)
    images = [value["bytes"] for value in table.column("image").slice(0, 8).to_pylist()]
    images[3] = images[3][:40]
    # The end of the last scan is missing, so rows at the bottom are not known.
    images[5] = images[5][: len(images[5]) // 2]
    parquet.write_table(pa.table({"image": images}), tmp_path / "a.parquet")
    damaged = fs.Dataset(tmp_path).map("image", fs.decode_image(), fs.resize((8, 8))).batch(8)
    with damaged.on_error("skip", max_fraction=0.5).loader() as loader:
        next(iter(loader))
        skipped, warned = loader.skip_report(), loader.warning_report()
    assert_described(skipped, fs.SkipReport)
    assert_described(skipped["samples"][0], SkippedSample)
    assert_described(warned, fs.WarningReport)
    for sample in warned["samples"]:
        assert_described(sample, WarnedSample)
