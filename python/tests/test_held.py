"""Batches that the caller keeps: slots are added up to a limit."""

from __future__ import annotations

import logging
import queue
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedstock as fs


@pytest.fixture(scope="module")
def data(imagenet: Path) -> fs.Dataset:
    return fs.Dataset(imagenet)


@pytest.mark.parametrize("functions", [False, True])
def test_a_loader_can_be_a_list(data: fs.Dataset, caplog: pytest.LogCaptureFixture, functions: bool) -> None:
    pipeline: fs.Pipeline = data.map("image", fs.decode_image(), fs.resize((8, 8))).batch(2)
    if functions:
        pipeline = pipeline.map_python(lambda batch: batch, num_threads=2)
    one_by_one = [(b["sample_ids"].copy(), b["image"].copy()) for b in pipeline.loader(output="numpy")]
    with caplog.at_level(logging.WARNING, "feedstock"):
        batches = list(pipeline.loader(output="numpy"))
    assert len(batches) == len(one_by_one) == 100
    for batch, (ids, image) in zip(batches, one_by_one, strict=True):
        assert (batch["sample_ids"] == ids).all()
        assert (batch["image"] == image).all()
    assert len([one for one in caplog.records if "held_bytes" in one.getMessage()]) == 1


def hoarded(loader: fs.Loader) -> list[Any]:
    """Keeps batches until the loader refuses to go on."""
    kept: list[Any] = []
    with pytest.raises(fs.ConfigError, match=r"slots are held by batches .* raise held_bytes"):
        for batch in loader:
            kept.append(batch)
    return kept


def test_slots_are_added_up_to_the_limit(data: fs.Dataset) -> None:
    pipeline = data.map("image", fs.decode_image(), fs.resize((64, 64))).batch(10)  # batches of 123 kB
    loader = pipeline.options(slots=2, held_bytes=1_000_000).loader()
    kept = hoarded(loader)
    assert 9 <= len(kept) <= 10  # 2 slots, and 7 or 8 that were added
    assert loader.stats()["slots"] == len(kept)
    assert loader.position == 10 * len(kept)
    delivered = [sample for batch in kept for sample in batch.sample_ids.tolist()]
    kept.clear()
    assert loader.stats()["slots"] == 2
    delivered += [sample for batch in loader for sample in batch.sample_ids.tolist()]
    assert sorted(delivered) == list(range(200))  # the error lost nothing


def test_undecoded_columns_count(data: fs.Dataset) -> None:
    size = np.mean([len(row["image"]) for row in data.head(200).rows()])
    loader = data.columns(["image"]).batch(10).options(held_bytes=int(65 * size)).loader()
    assert 7 <= len(hoarded(loader)) <= 12


def test_without_room_it_is_an_error_at_once(data: fs.Dataset) -> None:
    loader = data.columns(["label"]).batch(2).options(slots=2, held_bytes=0).loader()
    kept = hoarded(loader)
    assert len(kept) == 2
    kept.clear()
    assert next(iter(loader)).position == 4


def test_a_consumer_that_drops_batches_late_gets_all(data: fs.Dataset) -> None:
    """Batches that another thread holds for a while are neither lost nor an error."""
    loader = data.columns(["label"]).batch(10).options(slots=2, held_bytes=1_000_000).loader()
    taken: queue.SimpleQueue[Any] = queue.SimpleQueue()
    seen: list[int] = []

    def consume() -> None:
        while (batch := taken.get()) is not None:
            time.sleep(0.3)
            seen.extend(batch.sample_ids.tolist())

    consumer = threading.Thread(target=consume)
    consumer.start()
    for batch in loader:
        taken.put(batch)
    taken.put(None)
    consumer.join(60)
    assert seen == list(range(200))
