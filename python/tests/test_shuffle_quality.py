"""`Pipeline.shuffle_quality`: the figures of an order, next to a full shuffle."""

import math
from pathlib import Path

import pytest

import feedstock as fs


def test_figures_of_a_window_and_of_a_full_shuffle(imagenet: Path) -> None:
    pipeline = fs.Dataset(imagenet).shuffle(seed=7, window=50).batch(global_batch_size=20)
    quality = pipeline.shuffle_quality(world_size=2)
    assert (quality["label_column"], quality["world_size"], quality["sampled_steps"]) == ("label", 2, 10)
    assert (quality["half_window"]["window"], quality["order"]["window"]) == (25, 50)
    assert quality["twice_window"]["window"] == 100
    for order in ("order", "full_shuffle", "half_window", "twice_window"):
        labels = quality[order]["global_batch"]
        assert 0 < labels["entropy_bits"] <= math.log2(20) + 1e-9
        assert 1 <= labels["labels"] <= 20
    assert quality["full_shuffle"]["global_batch"]["entropy_ratio"] == 1.0
    assert quality["full_shuffle"]["displacement"] == pytest.approx(1 / 3, abs=0.05)
    assert quality["full_shuffle"]["reads"]["requests"] == 200
    reads = quality["order"]["reads"]
    assert 0 < reads["requests"] < 200
    assert 2 * reads["rank_requests"] == pytest.approx(reads["requests"], abs=1)
    assert 1 <= reads["readers"] <= 2


def test_without_a_shuffle_there_is_no_window(imagenet: Path) -> None:
    quality = fs.Dataset(imagenet).batch(10).shuffle_quality(epoch=3)
    assert (quality["order"]["window"], quality["half_window"], quality["twice_window"]) == (None, None, None)
    assert (quality["order"]["displacement"], quality["epoch"]) == (0.0, 3)


def test_buckets_and_other_columns_of_labels(common_voice: Path) -> None:
    clips = fs.Dataset(common_voice, split="train")
    pipeline = clips.shuffle(seed=7).bucket_by("duration").batch(global_total=60.0)
    assert pipeline.shuffle_quality()["label_column"] is None
    quality = pipeline.shuffle_quality(labels="client_id")
    assert quality["label_column"] == "client_id"
    assert quality["order"]["global_batch"]["labels"] > 1


def test_what_cannot_be_measured_is_an_error(imagenet: Path) -> None:
    pipeline = fs.Dataset(imagenet).shuffle(seed=7).batch(10)
    with pytest.raises(fs.ConfigError, match="world_size"):
        pipeline.shuffle_quality(0)
    with pytest.raises(fs.ConfigError, match="labels must be a column of texts or integers"):
        pipeline.shuffle_quality(labels="image")
    with pytest.raises(fs.ConfigError, match="no column named nothing"):
        pipeline.shuffle_quality(labels="nothing")
    with pytest.raises(fs.ConfigError, match="fewer than one global batch"):
        pipeline.shuffle_quality(world_size=100)
