"""`Pipeline.simulate`: a dry run of a job."""

from pathlib import Path

import pytest

import feedstock as fs


def test_a_slow_thread_is_the_bottleneck_and_threads_help(imagenet: Path) -> None:
    pipeline = fs.Dataset(imagenet).shuffle(seed=7).batch(10)
    simulation = pipeline.simulate(threads=1, decode_ms=4.0, step_ms=10.0)
    forecast = simulation["forecast"]
    assert (forecast["bottleneck"], simulation["steps"], simulation["samples"]) == ("cpu", 20, 200)
    assert forecast["samples_per_s"] == pytest.approx(250, rel=0.05)
    assert forecast["waiting_share"] == pytest.approx(0.75, abs=0.05)
    assert 0 < forecast["requests"] < 200  # blocks of several samples
    twice = {of["change"]: of["forecast"] for of in simulation["alternatives"]}["threads × 2"]
    assert twice is not None
    assert twice["samples_per_s"] == pytest.approx(500, rel=0.05)


def test_a_far_store_delays_the_first_batch_and_requests_cost(imagenet: Path) -> None:
    pipeline = fs.Dataset(imagenet).shuffle(seed=7).batch(10)
    near = pipeline.simulate(2, store="express")["forecast"]
    far = pipeline.simulate(2, store="far", price_per_1000_requests=1.0, price_per_gb=0.0)["forecast"]
    assert far["first_batch_s"] > 5 * near["first_batch_s"]
    assert far["dollars"] == pytest.approx(far["requests"] / 1000)


def test_what_cannot_be_simulated_is_an_error(imagenet: Path) -> None:
    pipeline = fs.Dataset(imagenet).shuffle(seed=7).batch(10)
    with pytest.raises(fs.ConfigError, match="world_size must be an integer >= 1"):
        pipeline.simulate(0)
    with pytest.raises(fs.ConfigError, match="store must be 's3', 'express', 'far' or 'local'; got 'near'"):
        pipeline.simulate(store="near")
    with pytest.raises(fs.ConfigError, match="decode_ms must be a number >= 0"):
        pipeline.simulate(decode_ms=-1.0)
    with pytest.raises(fs.ConfigError, match="fewer than one global batch"):
        pipeline.simulate(world_size=100)
    with pytest.raises(fs.ConfigError, match="an epoch has 1 step, and a forecast needs at least 2"):
        pipeline.simulate(world_size=11)
    with pytest.raises(fs.ConfigError, match="memory budget"):
        pipeline.options(budget_bytes=1_000).simulate()
