"""Ray Data in both directions on a real cluster: which rows, in which order, written once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feedstock as fs

pytest.importorskip("ray.data")

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import ray
from programs import pages
from programs.ray_cluster import RayCluster

from feedstock.ray import from_ray_data, to_ray_data

PAGE = Path(__file__).parents[2] / "docs" / "python" / "ray_data.md"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    cluster.add_node(spare=1)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield cluster
    cluster.close()


@pytest.fixture
def in_order(cluster: RayCluster) -> Iterator[None]:
    options = ray.data.DataContext.get_current().execution_options
    options.preserve_order = True
    yield
    options.preserve_order = False


@pytest.fixture(scope="module")
def pipeline(imagenet: Path) -> fs.Pipeline:
    """Returns a pipeline whose last batch has 8 of 32 samples."""
    pictures = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.random_resized_crop(8))
    return pictures.shuffle(seed=7, window=64).batch(32)


def columns(data: ray.data.Dataset) -> dict[str, Any]:
    """Returns all rows, a column as one array."""
    batches = list(data.iter_batches(batch_size=50, batch_format="numpy"))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def planned(pipeline: fs.Pipeline, epoch: int) -> dict[str, Any]:
    """Returns the same of one rank, without padding."""
    found: dict[str, list[Any]] = {}
    with pipeline.batch(32, tail="pad").loader(output="numpy") as loader:
        loader.set_epoch(epoch)
        for batch in loader:
            valid = batch.pop("valid")
            for name, column in batch.items():
                found.setdefault(name, []).append(np.asarray(column)[valid].copy())
    return {name: np.concatenate(parts) for name, parts in found.items()}


# From a pipeline


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_in_the_order_of_the_plan(in_order: None, pipeline: fs.Pipeline, epoch: int) -> None:
    data = to_ray_data(pipeline, epoch=epoch, tasks=3)
    expected = planned(pipeline, epoch)
    found = columns(data)
    assert found.pop("sample_id").tolist() == expected.pop("sample_ids").tolist()
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        assert (found[name] == column).all(), name
    assert found["image"].shape == (200, 8, 8, 3)


def test_every_sample_once_in_any_order_with_its_encoded_bytes(cluster: RayCluster, imagenet: Path) -> None:
    raw = fs.Dataset(imagenet, columns=["image", "label"]).batch(7)
    data = to_ray_data(raw, tasks=5, cpus_per_task=0.5)
    assert data.count() == 200
    found = columns(data)
    assert sorted(found["sample_id"].tolist()) == list(range(200))
    stored = pyarrow.parquet.read_table(imagenet).column("image").combine_chunks().field("bytes").to_pylist()
    assert [stored[sample] for sample in found["sample_id"].tolist()] == found["image"].tolist()


def test_tasks_are_ranges_of_batches(cluster: RayCluster, pipeline: fs.Pipeline) -> None:
    data = to_ray_data(pipeline, tasks=100)
    assert data.materialize().num_blocks() == 7, "no more tasks than batches"


def test_skipped_samples_are_left_out(cluster: RayCluster, tmp_path: Path, imagenet: Path) -> None:
    table = pyarrow.parquet.read_table(imagenet)
    images = [value["bytes"] for value in table.column("image").slice(0, 20).to_pylist()]
    images[3] = images[3][:40]
    pyarrow.parquet.write_table(pa.table({"image": images}), tmp_path / "a.parquet")
    damaged = fs.Dataset(tmp_path).map("image", fs.decode_image(), fs.resize((8, 8))).batch(8)
    data = to_ray_data(damaged.on_error("skip", max_fraction=0.5), tasks=2)
    assert data.count() == 19
    assert sorted(columns(data)["sample_id"].tolist()) == [n for n in range(20) if n != 3]


def test_pipelines_that_cannot_be_a_data_set(cluster: RayCluster, pipeline: fs.Pipeline) -> None:
    with pytest.raises(
        fs.ConfigError, match="takes no pipeline with map_python or map_rows; use Dataset.map_batches"
    ):
        to_ray_data(pipeline.map_python(dict))
    endless = fs.Dataset.mix([(pipeline.dataset, 1)], stop="never").batch(8)
    with pytest.raises(fs.ConfigError, match="needs an epoch that ends"):
        to_ray_data(endless)
    with pytest.raises(fs.ConfigError, match="cpus_per_task must be > 0; got 0"):
        to_ray_data(pipeline, cpus_per_task=0)


# From Ray Data


def test_written_once_and_opened(cluster: RayCluster, tmp_path: Path) -> None:
    executed = tmp_path / "executed"

    def series(row: dict[str, Any]) -> dict[str, Any]:
        with executed.open("a") as file:
            file.write(".")
        number = int(row["id"])
        return {"id": number, "name": f"station {number}", "series": np.full((2, 3), number, np.float32)}

    data = ray.data.range(40).map(series)
    made = from_ray_data(data, str(tmp_path / "made"), catalog="memory")
    times = len(executed.read_text())
    again = from_ray_data(data, str(tmp_path / "made"), catalog="memory")
    assert len(executed.read_text()) == times >= 40
    assert len(made) == 40
    for dataset in (made, again):
        rows = {}
        for batch in dataset.shuffle(seed=1).batch(8).loader(output="numpy"):
            assert (batch["series"].shape, batch["series"].dtype) == ((8, 6), np.float32)
            for number, name, values in zip(batch["id"], batch["name"], batch["series"], strict=True):
                rows[int(number)] = (name, set(values.tolist()))
        assert rows == {number: (f"station {number}", {float(number)}) for number in range(40)}


def test_there_and_back(in_order: None, pipeline: fs.Pipeline, tmp_path: Path) -> None:
    data = to_ray_data(pipeline, tasks=2)
    with pytest.raises(fs.ConfigError, match="a column named sample_id, which is reserved"):
        from_ray_data(data, f"file://{tmp_path}/refused", catalog="memory")
    assert not (tmp_path / "refused" / "_SUCCESS").exists()
    data = data.rename_columns({"sample_id": "origin"})
    made = from_ray_data(data, f"file://{tmp_path}/made", catalog="memory")
    (batch,) = made.batch(200).loader(output="numpy")
    expected = planned(pipeline, 0)
    assert sorted(batch["origin"].tolist()) == list(range(200))
    place = {sample: row for row, sample in enumerate(expected["sample_ids"].tolist())}
    rows = [place[sample] for sample in batch["origin"].tolist()]
    assert (batch["image"].reshape(200, 8, 8, 3) == expected["image"][rows]).all()


def test_folders_and_columns_that_are_refused(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "a.arrow").write_bytes(b"ARROW1")
    with pytest.raises(fs.ConfigError, match="has 1 files but no _SUCCESS: an earlier write was cut off"):
        from_ray_data(ray.data.range(4), str(tmp_path / "cut"))
    with pytest.raises(fs.ConfigError, match="has no rows, so nothing was written"):
        from_ray_data(ray.data.range(4).filter(lambda row: row["id"] > 9), str(tmp_path / "empty"))
    ragged = ray.data.range(4, override_num_blocks=1).map(lambda row: {"wave": np.zeros((1 + row["id"], 2))})
    with pytest.raises(Exception, match="column 'wave' has Python objects or tensors of several shapes"):
        from_ray_data(ragged, str(tmp_path / "ragged"))
    assert not (tmp_path / "ragged" / "_SUCCESS").exists()


def test_the_page(cluster: RayCluster, imagenet: Path, tmp_path: Path) -> None:
    (tmp_path / "sensors").mkdir()
    stations = pa.table({"station": [0, 1, 2, 3] * 5, "celsius": np.arange(20.0)})
    pyarrow.parquet.write_table(stations, tmp_path / "sensors" / "a.parquet")
    replacements = {
        "s3://corpus/imagenet/train": str(imagenet),
        "s3://corpus": str(tmp_path),
        "(256)": "(32)",
        "(224)": "(24)",
    }
    options = ray.data.DataContext.get_current().execution_options
    namespace: dict[str, Any] = {}
    pages.run(PAGE, replacements, namespace)
    options.preserve_order = False
    found = [value for batch in namespace["loader"] for value in batch["celsius"].tolist()]
    assert len(set(found)) == len(found) == 8, "two batches of 4 of 10 rows"
    assert {value % 4 for value in found} <= {0, 1}
