"""`AdaptiveLoader` in one process: epochs over restarts, the state within a step, other ranks, and misuse."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

import torch

import feedstock as fs
from feedstock import ConfigError
from feedstock.adaptive import (
    AdaptiveLoader,
    Alone,
    GradientStatistics,
    Linear,
    ScalingRule,
    SquareRoot,
    Unscaled,
    remaining_epochs_until,
)

SAMPLES = 200


class Clock:
    """A clock that only a test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Chorus:
    """Simulates a job of several processes that all send the same values."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def all_gather(self, value: Any) -> list[Any]:
        return [value] * self.size

    def broadcast(self, value: Any) -> Any:
        return value


@pytest.fixture(scope="session")
def pipeline(imagenet: Path) -> fs.Pipeline:
    images = fs.Dataset(str(imagenet)).map("image", fs.decode_image(), fs.random_resized_crop(8))
    return images.shuffle(seed=7).batch(global_batch_size=8, tail="pad").options(threads=1)


def adaptive(pipeline: fs.Pipeline, ranks: int = 1, **options: Any) -> AdaptiveLoader:
    options.setdefault("exchange", Alone() if ranks == 1 else Chorus(ranks))
    return AdaptiveLoader(pipeline.loader(0, ranks, output="torch"), **options)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8 * 8 * 3, 10))


def train(
    loader: AdaptiveLoader, net: torch.nn.Module, clock: Clock, count: Counter[int], stop: int = 10**9
) -> None:
    """Makes one pass over the loader. Each optimizer step takes 1 s plus 1 ms per row."""
    for done, batch in enumerate(loader, 1):
        count.update(batch["sample_ids"][batch["valid"]].tolist())
        # A target that does not depend on the image: the gradient is noise.
        loss = torch.nn.functional.cross_entropy(net(batch["image"].float() / 255), batch["sample_ids"] % 10)
        (loss / loader.accumulation_steps).backward()
        if loader.is_optimizer_step:
            loader.observe()
            net.zero_grad()
            clock.now += 1.0 + 1e-3 * loader.global_batch_size
        if done == stop:
            break


def test_what_comes_after_an_epochs_batches_is_not_lost_and_no_batch_repeats(pipeline: fs.Pipeline) -> None:
    seen: list[tuple[str, int]] = []
    state: Any = None
    with adaptive(pipeline) as loader:
        for epoch in loader.remaining_epochs_until(3):
            for _ in loader:
                seen.append(("batch", epoch))
            if epoch == 1:
                state = json.loads(json.dumps(loader.state_dict()))  # killed before the evaluation
                break
            seen.append(("evaluation", epoch))
    with adaptive(pipeline) as loader:
        loader.load_state_dict(state)
        for epoch in loader.remaining_epochs_until(3):
            for _ in loader:
                seen.append(("batch", epoch))
            seen.append(("evaluation", epoch))
        assert list(loader.remaining_epochs_until(3)) == []
        assert list(loader.remaining_epochs_until(4)) == [3]
    assert seen == [one for epoch in range(3) for one in [*[("batch", epoch)] * 25, ("evaluation", epoch)]]


def test_the_state_after_the_last_batch_but_within_the_loop_is_that_of_a_finished_pass(
    pipeline: fs.Pipeline,
) -> None:
    with adaptive(pipeline) as loader:
        for _ in loader.remaining_epochs_until(1):
            for batches, _ in enumerate(loader, 1):
                if batches == 25:
                    state = loader.state_dict()
    with adaptive(pipeline) as loader:
        loader.load_state_dict(state)
        assert [sum(1 for _ in loader) for _ in loader.remaining_epochs_until(2)] == [0, 25]


def test_an_epoch_in_its_midst_goes_on(pipeline: fs.Pipeline) -> None:
    count: Counter[int] = Counter()
    with adaptive(pipeline) as loader:
        loader.watch(model())
        train(loader, model_of(loader), Clock(), count, stop=11)
        state = loader.state_dict()
    with adaptive(pipeline) as loader:
        loader.load_state_dict(state)
        loader.start_prefetch()
        assert loader.loader.stats()  # runs before a batch is requested
        for epoch in loader.remaining_epochs_until(1):
            assert epoch == 0
            for batch in loader:
                count.update(batch["sample_ids"][batch["valid"]].tolist())
    assert len(count) == SAMPLES
    assert set(count.values()) == {1}


def model_of(loader: AdaptiveLoader) -> torch.nn.Module:
    net = model()
    loader.watch(net)
    return net


def test_epochs_of_a_plain_loader(pipeline: fs.Pipeline) -> None:
    with pipeline.loader() as loader:
        found = []
        for epoch in remaining_epochs_until(loader, 2):
            for batches, _ in enumerate(loader):
                if epoch == 1 and batches == 3:
                    break
            found.append(epoch)
        assert found == [0, 1]
        state = loader.state_dict()
    with pipeline.loader() as loader:
        loader.load_state_dict(state)
        assert [(epoch, sum(1 for _ in loader)) for epoch in remaining_epochs_until(loader, 3)] == [
            (1, 21),
            (2, 25),
        ]


def test_the_batch_grows_and_each_sample_still_comes_once_an_epoch(pipeline: fs.Pipeline) -> None:
    clock = Clock()
    with adaptive(pipeline, interval=6, clock=clock) as loader:
        loader.autoscale_batch_size(64)
        net = model_of(loader)
        for _ in loader.remaining_epochs_until(3):
            count: Counter[int] = Counter()
            train(loader, net, clock, count)
            assert len(count) == SAMPLES
            assert set(count.values()) == {1}
        assert loader.batch_size == 64
        assert loader.decision is not None
        assert loader.decision.goodput > loader.decision.current_goodput
        for configuration, seconds in loader.profile.items():
            assert seconds == pytest.approx(1.0 + 1e-3 * configuration.batch_size)
        assert loader.statistics is not None
        assert loader.progress > 25


def test_within_a_step_of_several_batches_the_state_is_that_before_it(pipeline: fs.Pipeline) -> None:
    with adaptive(pipeline) as loader:
        loader.autoscale_batch_size(64, (1, 4), gradient_accumulation=True)
        assert loader.batch_size == 4
        places = []
        for _ in loader:
            places.append((loader.is_optimizer_step, loader.state_dict()["loader"]["position"]))
            if len(places) == 4:
                break
        assert places == [(False, 0), (True, 8), (False, 8), (True, 16)]


def test_the_last_step_of_an_epoch_may_have_fewer_batches(imagenet: Path) -> None:
    images = fs.Dataset(str(imagenet)).map("image", fs.decode_image(), fs.random_resized_crop(8))
    odd = images.batch(global_batch_size=48, tail="pad").options(threads=1)
    with adaptive(odd) as loader:
        loader.autoscale_batch_size(64, (1, 8), gradient_accumulation=True)
        steps = [(loader.accumulation_steps, loader.is_optimizer_step) for _ in loader]
    assert [parts for parts, last in steps if last] == [6, 6, 6, 6, 1]
    assert len(steps) == 25


def test_a_batch_size_that_would_end_the_epoch_waits_for_the_next(pipeline: fs.Pipeline) -> None:
    clock = Clock()
    # 25 steps of 8 rows: after 24, only 8 rows are left, but the batch size is 16.
    with adaptive(pipeline, interval=24, clock=clock) as loader:
        loader.autoscale_batch_size(64)
        net = model_of(loader)
        sizes = []
        for _ in loader.remaining_epochs_until(2):
            count: Counter[int] = Counter()
            train(loader, net, clock, count)
            assert len(count) == SAMPLES
            sizes.append(loader.batch_size)
        assert sizes == [8, 16]
        assert loader.decision is not None


def test_a_batch_size_comes_back_within_what_fewer_ranks_can_do(
    pipeline: fs.Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    with adaptive(pipeline, ranks=4) as loader:
        state = loader.state_dict()
    state["adaptive"] = json.dumps({**json.loads(state["adaptive"]), "batch_size": 48})
    for order in ("load first", "autoscale first"):
        with adaptive(pipeline, ranks=2) as loader:
            if order == "load first":
                loader.load_state_dict(state)
            loader.autoscale_batch_size(64, (1, 32))
            if order == "autoscale first":
                loader.load_state_dict(state)
            assert (loader.batch_size, loader.world_size) == (24, 2)
            assert loader.initial_batch_size == 8
    with adaptive(pipeline, ranks=2) as loader:
        loader.autoscale_batch_size(64, (1, 16))
        loader.load_state_dict(state)
        assert loader.batch_size == 16
        assert "the batch size is 32, not the saved 48" in caplog.text


def test_other_ranks_between_steps_keep_the_rows_of_a_step(pipeline: fs.Pipeline) -> None:
    with adaptive(pipeline, ranks=4) as loader:
        loader.autoscale_batch_size(64, (1, 32))
        batches = iter(loader)
        assert len(next(batches)["sample_ids"]) == 2
        loader.reconfigure(rank=1, world_size=2, exchange=Chorus(2))
        assert len(next(batches)["sample_ids"]) == 4
        assert loader.position == 16
        assert (loader.rank, loader.world_size, loader.global_batch_size) == (1, 2, 8)


def test_ranks_at_different_places_are_told(pipeline: fs.Pipeline) -> None:
    with adaptive(pipeline, interval=2) as loader:
        net = model_of(loader)
        mine: list[Any] = []

        class Two(Chorus):
            def all_gather(self, value: Any) -> list[Any]:
                mine.append(value)
                return [value, value._replace(position=value.position + 8)]

        loader.reconfigure(exchange=Two(2))
        with pytest.raises(ConfigError, match=r"different positions.*\(0, 16\), \(0, 24\)"):
            train(loader, net, Clock(), Counter())
        assert mine


def test_a_rank_that_does_not_watch_is_named(pipeline: fs.Pipeline) -> None:
    class Blind(Chorus):
        def all_gather(self, value: Any) -> list[Any]:
            return [value, value._replace(noise=None)]

    with adaptive(pipeline, interval=2) as loader:
        net = model_of(loader)
        loader.reconfigure(exchange=Blind(2))
        with pytest.raises(ConfigError, match=r"processes \[1\] of 2 measured no gradient"):
            train(loader, net, Clock(), Counter())


def test_sums_are_saved_with_the_loader(pipeline: fs.Pipeline) -> None:
    with adaptive(pipeline, ranks=2) as loader:
        metrics = loader.accumulator("train")
        assert loader.accumulator("train") is metrics
        metrics.add(rows=3, loss=0.1)
        with pytest.raises(ConfigError, match=r"call sync\(\) on every rank"):
            loader.state_dict()
        loader.sync()
        state = json.loads(json.dumps(loader.state_dict()))
    with adaptive(pipeline, ranks=1) as loader:
        loader.load_state_dict(state)
        assert loader.accumulator("train").totals() == {"loss": 0.2, "rows": 6}


def test_torch_distributed_checkpoint_saves_all_of_it(pipeline: fs.Pipeline, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    clock = Clock()
    with adaptive(pipeline, interval=6, clock=clock) as loader:
        loader.autoscale_batch_size(64)
        loader.accumulator("train").add(rows=5)
        train(loader, model_of(loader), clock, Counter(), stop=9)
        state, size = loader.state_dict(), loader.batch_size
        assert size == 16
        dcp.save({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
    with adaptive(pipeline) as loader:
        loader.autoscale_batch_size(64)
        dcp.load({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
        assert loader.state_dict() == state
        assert loader.batch_size == size
        assert loader.accumulator("train").totals() == {"rows": 5}
        assert loader.profile
        assert len(json.dumps(state)) < 2000


@pytest.mark.parametrize(
    ("rule", "factor"), [(None, 400 / 325), (SquareRoot(), 2.0), (Linear(), 4.0), (Unscaled(), 1.0)]
)
def test_the_learning_rate_is_scaled_for_a_block_and_restored(
    pipeline: fs.Pipeline, rule: ScalingRule | None, factor: float
) -> None:
    net = model()
    optimizer = torch.optim.SGD(
        [{"params": [net[1].weight], "lr": 0.5}, {"params": [net[1].bias], "lr": 0.1}]
    )
    with adaptive(pipeline, rule=rule) as loader:
        loader._tuner.scaler.noise.update(
            3.0, 8.0, 1, 1.0, successive=False
        )  # φ = 8/3; r = (8/8 + 3)/(8/32 + 3)
        assert loader.statistics == GradientStatistics(pytest.approx(3.0), pytest.approx(8.0))
        loader.autoscale_batch_size(64)
        loader._restored = 32
        loader._place_restored()
        with contextlib.suppress(RuntimeError), loader.scaled_lr(optimizer) as applied:
            assert applied == loader.lr_factor == pytest.approx(factor)
            assert [group["lr"] for group in optimizer.param_groups] == [0.5 * applied, 0.1 * applied]
            raise RuntimeError("the optimizer failed")
        assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]


def test_gradients_that_nobody_reads_are_missed(pipeline: fs.Pipeline) -> None:
    with adaptive(pipeline, interval=3) as loader:
        loader.autoscale_batch_size(64)
        with pytest.raises(
            ConfigError,
            match=r"processes \[0\] of 1 measured no gradient in 3 optimizer steps.*watch\(model\)",
        ):
            sum(1 for _ in loader)
        loader._part = 1
        with pytest.raises(ConfigError, match="no model is watched"):
            loader.observe()


def test_observing_within_a_step_is_refused(pipeline: fs.Pipeline) -> None:
    with adaptive(pipeline) as loader:
        loader.autoscale_batch_size(64, (1, 4), gradient_accumulation=True)
        loader.watch(model())
        next(iter(loader))
        with pytest.raises(ConfigError, match="micro-batch 1 of 2"):
            loader.observe()
        with pytest.raises(ConfigError, match="micro-batch 1 of 2"):
            loader.reconfigure(world_size=1)


def test_settings_that_cannot_be_are_refused(pipeline: fs.Pipeline, imagenet: Path) -> None:
    with adaptive(pipeline) as loader:
        with pytest.raises(ConfigError, match="max_batch_size must be >= 8, .*; got 4"):
            loader.autoscale_batch_size(4)
        with pytest.raises(
            ConfigError, match=r"local_bsz_bounds must be \(smallest, largest\); got \(8, 4\)"
        ):
            loader.autoscale_batch_size(64, (8, 4))
        with pytest.raises(ConfigError, match=r"local_bsz_bounds\[0\] must be an integer >= 1; got 0"):
            loader.autoscale_batch_size(64, (0, 4))
        with pytest.raises(
            ConfigError, match=r"local_bsz_bounds must include the current 8 rows of each rank; got \(1, 4\)"
        ):
            loader.autoscale_batch_size(64, (1, 4))
        with pytest.raises(ConfigError, match="version of an adaptive state must be 1; got None"):
            loader.load_state_dict({})
        epochs = loader.remaining_epochs_until(2)
        next(epochs)
        with pytest.raises(ConfigError, match="epoch 0 has not ended"):
            next(loader.remaining_epochs_until(2))
    for options, message in (
        ({"interval": 1}, "interval must be an integer >= 2; got 1"),
        ({"interval": 2.5}, "interval must be an integer >= 2; got 2.5"),
        ({"smoothing": 1.0}, "smoothing must be > 0 and < 1; got 1.0"),
        ({"smoothing": "0.5"}, "smoothing must be > 0 and < 1; got '0.5'"),
        ({"min_speedup": 0.9}, "min_speedup must be >= 1; got 0.9"),
        ({"min_speedup": None}, "min_speedup must be >= 1; got None"),
    ):
        with pytest.raises(ConfigError, match=message):
            adaptive(pipeline, **options)
    with pytest.raises(ConfigError, match="loader must be made with restart=False; got restart=True"):
        AdaptiveLoader(pipeline.loader(restart=True))
    with pytest.raises(ConfigError, match=r"torch\.distributed is not initialized"):
        AdaptiveLoader(pipeline.loader(0, 2))
    total = (
        fs.Dataset(str(imagenet))
        .map("image", fs.decode_image(), fs.random_resized_crop(8))
        .lengths_from("width")
    )
    with pytest.raises(
        ConfigError, match="loader must have batches of a number of rows .*; got batches bounded by a total"
    ):
        AdaptiveLoader(total.batch(total=4000).loader())
