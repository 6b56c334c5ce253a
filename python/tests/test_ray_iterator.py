"""The loader in the shape of Ray's DataIterator, and Ray Train's DataConfig, without a cluster."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import feedstock as fs

pytest.importorskip("torch")
pytest.importorskip("ray")

import numpy as np
import pyarrow as pa
import ray
import torch
from ray import cloudpickle
from ray.data.collate_fn import ArrowBatchCollateFn, NumpyBatchCollateFn, PandasBatchCollateFn

from feedstock.ray import DataConfig, DataIterator


@pytest.fixture(scope="module")
def pipeline(imagenet: Path) -> fs.Pipeline:
    pictures = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.random_resized_crop(8))
    return pictures.shuffle(seed=3, window=64).batch(16).options(threads=1)


@pytest.fixture
def labels(imagenet: Path) -> fs.Pipeline:
    """Returns a pipeline without decoding, for tests that need no images."""
    return fs.Dataset(imagenet, columns=["label"]).shuffle(seed=3, window=64).batch(16)


def configure(config: DataConfig, world_size: int, **datasets: Any) -> list[dict[str, Any]]:
    return config.configure(datasets, world_size, None, [f"node{rank}" for rank in range(world_size)])


def ids(batches: Any) -> list[int]:
    return [sample for batch in batches for sample in batch["sample_ids"].tolist()]


# DataConfig


def test_ranks_share_an_epoch_exactly_once_as_ray_ships_them(labels: fs.Pipeline) -> None:
    shards = configure(DataConfig(), 4, train=labels.batch(global_batch_size=20))
    iterators = [cloudpickle.loads(cloudpickle.dumps(shard["train"])) for shard in shards]
    assert {(len(it), it.steps_left, it.epoch, it.position, it.batch_size) for it in iterators} == {
        (10, 10, 0, 0, 5)
    }
    assert sorted(sample for it in iterators for sample in ids(it)) == list(range(200))
    assert {(it.epoch, it.position, it.steps_left) for it in iterators} == {(1, 0, 10)}


def test_a_place_moves_to_another_world_size(labels: fs.Pipeline) -> None:
    data = labels.batch(global_batch_size=20)
    before = [shard["train"] for shard in configure(DataConfig(), 2, train=data)]
    streams = [iter(it) for it in before]
    committed = [
        sample for _ in range(3) for stream in streams for sample in next(stream)["sample_ids"].tolist()
    ]
    assert before[0].state_dict() == before[1].state_dict()
    after = [shard["train"] for shard in configure(DataConfig(), 5, train=data)]
    for it in after:
        it.load_state_dict(before[0].state_dict())
    assert {it.position for it in after} == {60}
    committed += [sample for it in after for sample in ids(it)]
    assert sorted(committed) == list(range(200))


def test_sets_that_are_not_split_and_sets_that_restart(labels: fs.Pipeline) -> None:
    config = DataConfig(["train"], restart=["val"], output="numpy")
    shards = configure(config, 2, train=labels, val=labels.batch(50, tail="pad"))
    assert [(s["train"].rank, s["train"].world_size) for s in shards] == [(0, 2), (1, 2)]
    assert [(s["val"].rank, s["val"].world_size) for s in shards] == [(0, 1), (0, 1)]
    evaluation = shards[1]["val"]
    for _ in range(2):
        next(iter(evaluation))
        assert evaluation.position == 50
    assert isinstance(next(iter(evaluation))["label"], np.ndarray)


def test_what_cannot_be_configured_is_said(labels: fs.Pipeline) -> None:
    with pytest.raises(fs.ConfigError, match=r"datasets\['train'\] is a Dataset, which has no batches"):
        configure(DataConfig(), 2, train=labels.dataset)
    with pytest.raises(fs.ConfigError, match="restart must name pipelines; got 'val', which is of type list"):
        configure(DataConfig(restart=["val"]), 2, val=[1, 2])
    with pytest.raises(fs.ConfigError, match="restart must be a list of names"):
        DataConfig(restart="val")
    with pytest.raises(fs.ConfigError, match="output must be .*; got 'pandas'"):
        DataIterator(labels, output="pandas")  # type: ignore[arg-type]


# DataIterator: pickling and iteration


def test_it_pickles_until_it_is_opened(labels: fs.Pipeline) -> None:
    fresh = DataIterator(labels, 1, 2)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(fresh))))
    assert repr(again) == "DataIterator(rank=1, world_size=2)"
    assert ids(again) == ids(fresh)
    with pytest.raises(TypeError, match="send state_dict"):
        pickle.dumps(again)


def test_functions_travel_and_get_what_output_says(labels: fs.Pipeline) -> None:
    doubled = labels.map_python(
        lambda batch: {"twice": batch["label"] * 2, "sample_ids": batch["sample_ids"]}
    )
    it = cloudpickle.loads(cloudpickle.dumps(DataIterator(doubled)))
    (batch, *_), plain = it.iter_torch_batches(), next(iter(labels.loader(output="torch")))
    assert batch.keys() == {"twice", "sample_ids"}
    assert torch.equal(batch["twice"], plain["label"] * 2)


def test_iterating_goes_on_and_every_iterable_starts_anew(labels: fs.Pipeline) -> None:
    it = DataIterator(labels.batch(20))
    batches = it.iter_torch_batches()
    first = ids(next(iter(batches)) for _ in range(2))
    assert sorted(first + ids(batches)) == list(range(200))
    assert sorted(ids(batches)) == list(range(200))
    assert it.epoch == 2
    next(iter(batches))
    it.close()
    assert (it.epoch, it.steps_left) == (2, 9)  # continues from there
    assert len(ids(batches)) == 180


def test_the_loaders_face(labels: fs.Pipeline) -> None:
    it = DataIterator(labels.batch(20), 1, 2)
    it.seek(2)
    it.start_prefetch()
    assert it.loader.stats()  # runs before a batch is requested
    planned = it.samples_in(2)
    batch = next(iter(it))
    assert batch["sample_ids"].tolist() == planned[1].tolist()
    it.set_epoch(0)  # the current epoch: nothing happens
    assert it.position == 120
    it.set_epoch(3)
    assert (it.epoch, it.position, it.global_batch_size) == (3, 0, 40)
    ids(it)
    ledger = it.ledger()
    assert ledger is not None
    assert ledger["exact"]


def test_an_adaptive_loader_takes_a_shard_and_changes_its_batches(labels: fs.Pipeline) -> None:
    pytest.importorskip("scipy")
    from feedstock.adaptive import AdaptiveLoader, Alone

    shard = DataIterator(labels.batch(global_batch_size=20))
    loader = AdaptiveLoader(shard, exchange=Alone())
    batches = iter(loader)
    first = next(batches)["sample_ids"].tolist()
    shard.reconfigure(0, 2)
    assert (shard.rank, shard.world_size, shard.batch_size) == (0, 2, 10)
    loader.reconfigure(0, 1)
    rest = ids(loader)
    assert len(first) == 20
    assert sorted(first + rest) == list(range(200))


def test_an_adaptive_loader_rejects_a_shard_that_restarts(labels: fs.Pipeline) -> None:
    pytest.importorskip("scipy")
    from feedstock.adaptive import AdaptiveLoader, Alone

    with pytest.raises(fs.ConfigError, match="restart=False"):
        AdaptiveLoader(DataIterator(labels, restart=True), exchange=Alone())


# DataIterator: Ray's API


def test_torch_batches(pipeline: fs.Pipeline) -> None:
    it = DataIterator(pipeline)
    batch = next(iter(it.iter_torch_batches(dtypes={"image": torch.float16}, device="cpu")))
    assert (batch["image"].dtype, batch["image"].shape) == (torch.float16, (16, 8, 8, 3))
    assert batch["label"].dtype == torch.int64
    batch = next(iter(it.iter_torch_batches(dtypes=torch.float64)))
    assert batch["image"].dtype == batch["label"].dtype == torch.float64
    assert (batch["sample_ids"].dtype, batch["valid"].dtype) == (torch.int64, torch.bool)
    assert next(iter(it.iter_torch_batches(device="meta")))["image"].device.type == "meta"
    with pytest.raises(
        fs.ConfigError, match=r"dtypes must name columns of the batch \(image, .*; got 'picture'"
    ):
        next(iter(it.iter_torch_batches(dtypes={"picture": torch.float16})))
    with pytest.raises(fs.ConfigError, match="exclude each other"):
        it.iter_torch_batches(dtypes=torch.float16, collate_fn=lambda batch: batch)


def test_collate_functions_get_what_their_class_says(labels: fs.Pipeline) -> None:
    got: list[Any] = []

    def collate(base: type) -> Any:
        def call(self: Any, batch: Any) -> Any:
            got.append(batch)
            return (torch.ones(2), [torch.zeros(1)], "text")

        return type("Collate", (base,), {"__call__": call})()

    it = DataIterator(labels)
    for base in (ArrowBatchCollateFn, NumpyBatchCollateFn, PandasBatchCollateFn):
        ones, (zeros,), text = next(iter(it.iter_torch_batches(collate_fn=collate(base), device="meta")))
        assert (ones.device.type, zeros.device.type, text) == ("meta", "meta", "text")
    table, arrays, frame = got
    assert isinstance(table, pa.Table)
    assert isinstance(arrays["label"], np.ndarray)
    assert len(frame["label"]) == 16
    assert next(iter(it.iter_torch_batches(collate_fn=lambda arrays: len(arrays["label"])))) == 16


def test_batches_in_rays_formats(pipeline: fs.Pipeline) -> None:
    it = DataIterator(pipeline)
    assert next(iter(it.iter_batches()))["image"].shape == (16, 8, 8, 3)
    table = next(iter(it.iter_batches(batch_format="pyarrow")))
    assert isinstance(table, pa.Table)
    assert table.num_rows == 16
    assert next(iter(it.iter_batches(batch_format=None))).schema == table.schema
    assert list(next(iter(it.iter_batches(batch_format="pandas")))["label"].shape) == [16]
    with pytest.raises(fs.ConfigError, match="batch_format must be .*; got 'cudf'"):
        it.iter_batches(batch_format="cudf")  # type: ignore[arg-type]


def test_sizes_and_order_are_the_pipelines(labels: fs.Pipeline) -> None:
    it = DataIterator(labels)
    with pytest.raises(fs.ConfigError, match="the pipeline sets the order"):
        it.iter_torch_batches(local_shuffle_buffer_size=100)
    assert len(next(iter(it.iter_torch_batches(batch_size=40)))["label"]) == 40
    assert it.batch_size == 40
    it.iter_batches(drop_last=True)
    it.iter_batches(drop_last=False)  # 5 × 40 samples: there is no last, incomplete batch
    with pytest.raises(fs.ConfigError, match=r"drop_last=False contradicts .* use batch\(…, tail='pad'\)"):
        it.iter_batches(batch_size=16, drop_last=False)
    with pytest.raises(fs.ConfigError, match=r"drop_last=True contradicts .* use batch\(…, tail='drop'\)"):
        DataIterator(labels.batch(16, tail="pad")).iter_batches(drop_last=True)


def test_stats_and_schema(pipeline: fs.Pipeline) -> None:
    it = DataIterator(pipeline)
    next(iter(it))
    stats = it.stats()
    assert isinstance(stats, str)
    assert all(f"{name}: " in stats for name in it.loader.stats())
    schema = it.schema()
    assert isinstance(schema, ray.data.Schema)
    assert dict(zip(schema.names, map(str, schema.types), strict=True))["label"] == "int64"
    assert it.position == 16, "looking at the schema took a batch"


def test_what_ray_has_and_this_has_not_is_said(labels: fs.Pipeline) -> None:
    it = DataIterator(labels)
    with pytest.raises(AttributeError, match=r"has no materialize: a pipeline streams"):
        it.materialize()
    with pytest.raises(AttributeError, match="has no attribute 'unheard_of'"):
        it.unheard_of  # noqa: B018


def test_without_ray_there_is_a_clear_error() -> None:
    program = """
import sys
sys.modules["ray"] = None  # as if it were not installed
import feedstock.ray
feedstock.ray.DataIterator
try:
    feedstock.ray.DataConfig
except ImportError as error:
    assert "pip install 'feedstock[ray]'" in str(error), error
else:
    sys.exit("no error")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
