"""Several numeric columns and series of numbers, such as those of sensors, as tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import feedstock as fs

pytest.importorskip("torch")

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from programs import pages

PAGE = Path(__file__).parents[2] / "docs" / "python" / "series.md"
ROWS = 24


@pytest.fixture(scope="module", params=["parquet", "arrow"])
def sensors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a table with numbers, a series of 6 values, and a series of 1 to 4 values in each row."""
    folder = tmp_path_factory.mktemp("sensors")
    series = np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 6)
    table = pa.table(
        {
            "pressure": pa.array(np.arange(ROWS, dtype=np.float32)),
            "celsius": pa.array(np.arange(ROWS, dtype=np.float32) / 2),
            "station": pa.array(np.arange(ROWS) % 3),
            "acceleration": pa.FixedSizeListArray.from_arrays(pa.array(series.ravel()), 6),
            "events": pa.array([[float(row)] * (1 + row % 4) for row in range(ROWS)], pa.list_(pa.float32())),
        }
    )
    if request.param == "parquet":
        pyarrow.parquet.write_table(table, folder / "a.parquet")
    else:
        with pa.ipc.new_file(folder / "a.arrow", table.schema) as file:
            file.write_table(table)
    return folder


def test_lists_of_one_length_are_tensors(sensors: Path) -> None:
    for batch in fs.Dataset(sensors).shuffle(seed=3).batch(8).loader(output="torch"):
        assert (batch["acceleration"].shape, batch["acceleration"].dtype) == ((8, 6), torch.float32)
        expected = torch.stack([torch.arange(6) + 6 * row for row in batch["sample_ids"].tolist()])
        assert (batch["acceleration"] == expected).all()
        assert isinstance(batch["events"], list)


def test_the_page(sensors: Path) -> None:
    namespace: dict[str, Any] = {}
    pages.run(PAGE, {"s3://corpus/sensors": str(sensors), "batch(256)": "batch(8)"}, namespace)
    assert namespace["numbers"].shape == (8, 2)
    assert namespace["axes"].shape == (8, 2, 3)
    rows = namespace["batch"]["sample_ids"].tolist()
    padded, lengths = namespace["batch"]["events"], namespace["batch"]["events_length"]
    assert lengths.tolist() == [1 + row % 4 for row in rows]
    assert padded.shape == (8, max(lengths))
    for row, values, length in zip(rows, padded, lengths, strict=True):
        assert values.tolist() == [float(row)] * length + [0.0] * (len(values) - length)
