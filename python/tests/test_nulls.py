"""Missing values in columns of numbers: one form in every batch. pyarrow writes the files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from served import worker

import feedstock as fs

ROWS = 120
WITHOUT = {50, 91}


def write(folder: Path, statistics: bool) -> Path:
    labels = [None if row in WITHOUT else row for row in range(ROWS)]
    table = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "label": pa.array(labels, pa.int64()),
            "score": pa.array([None if row in WITHOUT else row / 2 for row in range(ROWS)], pa.float32()),
            "flag": pa.array([row % 2 == 0 for row in range(ROWS)], pa.bool_()),
            "text": [str(row) for row in range(ROWS)],
        }
    )
    pq.write_table(table, folder / "a.parquet", row_group_size=40, write_statistics=statistics)
    return folder


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a file whose footer counts the nulls."""
    return write(tmp_path_factory.mktemp("counted"), True)


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a file whose footer does not count the nulls."""
    return write(tmp_path_factory.mktemp("silent"), False)


def pipeline(folder: Path, *columns: str) -> fs.Pipeline:
    data = fs.Dataset(folder, columns=columns or None)
    return data.shuffle(seed=3).batch(16, tail="pad").epochs(1).options(slots=20)  # tests keep all batches


def forms(batches: Iterator[Any], column: str) -> set[type]:
    return {type(batch[column]) for batch in batches}


@pytest.mark.parametrize("output", ["batch", "numpy", "torch"])
def test_statistics_decide_for_every_batch(counted: Path, silent: Path, output: Any) -> None:
    if output == "torch":
        pytest.importorskip("torch")
    tensor = type(next(iter(pipeline(silent, "id").loader(output=output)))["id"])
    batches = list(pipeline(counted).loader(output=output))
    assert len(batches) == 8
    for column in ("id", "flag"):
        assert forms(iter(batches), column) == {tensor}
    for column in ("label", "score", "text"):
        assert forms(iter(batches), column) == {list}
    values = [value for batch in batches for value in batch["label"]]
    assert {None, 0, 119} <= set(values)

    kept = fs.Dataset(counted).filter("label is not null").batch(16).loader(output=output)
    assert forms(iter(kept), "label") == {tensor}


def test_an_unforeseen_null_is_a_bad_sample(silent: Path) -> None:
    with pytest.raises(fs.SampleError, match=r"column 'label' is null") as raised:
        list(pipeline(silent, "id", "label").loader())
    assert 'nulls="list" | value | "mask"' in str(raised.value)
    assert 'on_error="skip"' in str(raised.value)
    assert raised.value.sample_id in WITHOUT
    assert raised.value.column == "label"

    loader = pipeline(silent, "id", "label").on_error("skip", max_fraction=0.1).loader()
    for batch in loader:
        labels, valid = batch["label"].numpy(), batch.valid
        assert labels.dtype == np.int64
        assert (labels[valid] == batch.sample_ids[valid]).all()
    assert {skipped["sample_id"] for skipped in loader.skip_report()["samples"]} == WITHOUT


@pytest.mark.parametrize("source", ["counted", "silent"])
def test_values_and_masks(source: str, request: pytest.FixtureRequest) -> None:
    chosen = pipeline(request.getfixturevalue(source)).nulls("mask").nulls({"label": np.int64(-1)})
    served = worker(request.getfixturevalue(source))
    try:
        loaders = chosen.loader(output="numpy"), chosen.loader(output="numpy", workers=served.address)
        for here, there in zip(*loaders, strict=True):
            assert here.keys() == there.keys()
            for name, values in here.items():
                assert np.array_equal(values, there[name]), name
            present = ~np.isin(here["sample_ids"], list(WITHOUT))
            assert (here["label"] == np.where(present, here["id"], -1)).all()
            assert (here["score"].dtype, here["score_mask"].dtype) == (np.float32, np.bool_)
            assert (here["score"] == np.where(present, here["id"] / 2, 0)).all()
            assert (here["score_mask"] == present).all()
            assert here["flag_mask"].all()
    finally:
        served.stop()


def test_a_list_may_be_asked_for(silent: Path) -> None:
    batches = list(pipeline(silent).nulls("list").loader())
    for column in ("id", "label", "score", "flag"):
        assert forms(iter(batches), column) == {list}
    values = {}
    for batch in batches:
        values |= dict(zip(batch.sample_ids.tolist(), batch["label"], strict=True))
    assert values == {row: None if row in WITHOUT else row for row in range(ROWS)}


@pytest.mark.parametrize(
    ("nulls", "message"),
    [
        ({"label": 1.5}, r"'label' \(Int64\) must be an integer; got 1.5"),
        ({"label": 2**63}, "in its type's range"),
        ({"label": 2**130}, "does not fit a column of any type"),
        ({"score": True}, r"'score' \(Float32\) must be a number; got true"),
        ({"score": 1e300}, "in its type's range"),
        ({"flag": 0}, r"'flag' \(Boolean\) must be true or false; got 0"),
        ({"text": 0}, "column 'text' is Utf8"),
        ({"lable": 0}, "no column 'lable' of numbers; there are: id, label, score, flag"),
        ("drop", "nulls must be 'list' or 'mask'; got 'drop'"),
        ({"label": None}, "nulls must be 'list', 'mask' or a value; got None"),
    ],
)
def test_settings_are_checked_before_anything_runs(silent: Path, nulls: Any, message: str) -> None:
    with pytest.raises(fs.ConfigError, match=message):
        pipeline(silent).nulls(nulls).loader()


def test_nan_and_false_are_values(silent: Path) -> None:
    chosen = pipeline(silent, "score", "flag").nulls({"score": float("nan"), "flag": False})
    scores = np.concatenate([batch["score"].numpy()[batch.valid] for batch in chosen.loader()])
    assert np.isnan(scores).sum() == len(WITHOUT)
