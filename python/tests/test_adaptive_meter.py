"""The noise scale of real backward passes, for gradients with a known mean and covariance."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from programs import adaptive_gradients, torch_ranks
from programs.adaptive_gradients import ROWS, Linear, rows, truth

from feedstock import ConfigError
from feedstock.adaptive.meter import GradientMeter, NoiseSample, combine


def moments() -> tuple[float, float]:
    mean, spread = truth()
    return float(mean.square().sum()), float(spread.square().sum())


@pytest.mark.parametrize("accumulation_steps", [1, 4])
@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
def test_one_rank_finds_the_known_moments(accumulation_steps: int, loss_scale: float) -> None:
    """Several micro-batches give moments from their gradients, and one gives them from successive steps."""
    torch.manual_seed(0)
    model = Linear()
    meter = GradientMeter(model.parameters(), world_size=1)
    generator = torch.Generator().manual_seed(1)
    samples = []
    for _ in range(600):
        model.zero_grad()
        for _ in range(accumulation_steps):
            (model(rows(generator)).mean() * (loss_scale / accumulation_steps)).backward()
        meter.observe(ROWS, accumulation_steps, loss_scale)
        samples.append(meter.take())
    samples = [sample for sample in samples if sample.steps]
    assert len(samples) == (599 if accumulation_steps == 1 else 600)
    assert {sample.successive for sample in samples} == {accumulation_steps == 1}
    for values, true in zip(([s.sqr for s in samples], [s.var for s in samples]), moments(), strict=True):
        mean = sum(values) / len(values)
        spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        error = 2.0 * spread / math.sqrt(len(values))  # successive pairs share a gradient: up to √2 more
        assert abs(mean - true) < 3.0 * error, (mean, true, error)
        assert 3.0 * error < 0.25 * true


@pytest.mark.parametrize(("ranks", "accumulation_steps"), [(2, 1), (3, 2)])
def test_under_ddp_the_ranks_own_gradients_are_compared_with_their_mean(
    tmp_path: Path, ranks: int, accumulation_steps: int
) -> None:
    codes = torch_ranks.launch(
        adaptive_gradients.under_ddp, ranks, tmp_path, str(tmp_path), 50, accumulation_steps
    )
    assert codes == [0] * ranks, torch_ranks.printed(tmp_path)
    result = json.loads((tmp_path / "ddp.json").read_text())
    steps, sqr, var, successive = result["measured"]
    assert steps == 50
    assert not successive
    assert [sqr, var] == pytest.approx(result["expected"], rel=1e-4)
    assert [sqr, var] == pytest.approx(moments(), rel=0.3)


def test_under_fsdp_the_shards_of_successive_gradients_add_up(tmp_path: Path) -> None:
    codes = torch_ranks.launch(adaptive_gradients.under_fsdp, 2, tmp_path, str(tmp_path), 30)
    assert codes == [0, 0], torch_ranks.printed(tmp_path)
    result = json.loads((tmp_path / "fsdp.json").read_text())
    assert result["measured"] == pytest.approx(result["expected"], rel=1e-4)
    assert result["measured"][0] == 29


def test_a_step_that_is_not_finite_does_not_count() -> None:
    model = Linear()
    meter = GradientMeter(model.parameters(), world_size=1)
    generator = torch.Generator().manual_seed(1)
    for step in range(6):
        model.zero_grad()
        for _ in range(2):
            batch = rows(generator)
            if step == 3:
                batch[0, 0] = math.inf
            (model(batch).mean() / 2).backward()
        meter.observe(ROWS, 2)
    sample = meter.take()
    assert sample.steps == 5
    assert math.isfinite(sample.sqr)
    assert math.isfinite(sample.var)
    assert meter.take().steps == 0


def test_gradients_of_other_batch_sizes_are_not_compared() -> None:
    model = Linear()
    meter = GradientMeter(model.parameters(), world_size=1)
    generator = torch.Generator().manual_seed(1)
    for count in (4, 4, 8, 8, 4):
        model.zero_grad()
        model(rows(generator, count)).mean().backward()
        meter.observe(count, 1)
    assert meter.take().steps == 2
    meter.discard()
    model.zero_grad()
    model(rows(generator, 4)).mean().backward()
    meter.observe(4, 1)
    assert meter.take().steps == 0


def test_misuse_is_told() -> None:
    model = Linear()
    meter = GradientMeter(model.parameters(), world_size=1)
    with pytest.raises(ConfigError, match="after backward and before zero_grad"):
        meter.observe(ROWS, 1)
    (model(torch.ones(2, adaptive_gradients.WIDTH)).mean() / 2).backward()
    meter.observe(ROWS, 2)
    with pytest.raises(ConfigError, match="once an optimizer step"):
        meter.observe(ROWS, 2)
    with pytest.raises(ConfigError, match="no parameter requires a gradient"):
        GradientMeter([torch.nn.Parameter(torch.ones(1), requires_grad=False)], 1)


def test_closing_takes_the_hooks_off() -> None:
    model = Linear()
    meter = GradientMeter(model.parameters(), world_size=1)
    meter.close()
    model(torch.ones(2, adaptive_gradients.WIDTH)).mean().backward()
    with pytest.raises(ConfigError, match="no backward since"):
        meter.observe(ROWS, 2)


def test_ranks_average_or_add_up() -> None:
    mine, theirs = NoiseSample(2, 4.0, 6.0, False, False), NoiseSample(2, 8.0, 2.0, False, False)
    assert combine([mine, theirs]) == (2, 3.0, 2.0, False)
    shards = [NoiseSample(2, 4.0, 6.0, True, True), NoiseSample(2, 8.0, 2.0, True, True)]
    assert combine(shards) == (2, 6.0, 4.0, True)
    assert combine([NoiseSample(0, 0.0, 0.0, False, False)] * 2) is None
