"""Pollux's model of the time of a training step, and its fit to measured times.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021, section
3.2:

    T_grad(m) = α_grad + β_grad · m                                  seconds for m samples on one rank
    T_sync    = 0                                 K = 1              seconds to all-reduce, K ranks on N nodes
              = α_local + β_local · (K − 2)       N = 1, K ≥ 2
              = α_node  + β_node  · (K − 2)       N ≥ 2
    T_step    = (A − 1) · T_grad + (T_grad^γ + T_sync^γ)^(1/γ)       A micro-batches a step

γ from 1 (nothing overlaps) to 10 (practically max: all of the all-reduce hides behind the backward pass). The
measured
time is the whole step, waiting for data and the optimizer included: what counts is when the next step can
begin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedstock import ConfigError

GAMMA_MAX = 10.0  # the paper's bound: close enough to max(T_grad, T_sync), and still smooth
FLOOR_S = 1e-9  # no part of a step is faster; keeps logarithms finite

Floats = npt.NDArray[np.float64]


class Configuration(NamedTuple):
    """What decides the time of a step.

    nodes: machines; world_size: ranks; local_bsz: rows of one micro-batch on one rank; accumulation_steps:
    micro-batches an optimizer step, at least 1.
    """

    nodes: int
    world_size: int
    local_bsz: int
    accumulation_steps: int

    @property
    def batch_size(self) -> int:
        """Rows of one optimizer step, over all ranks."""
        return self.world_size * self.local_bsz * self.accumulation_steps


@dataclass(frozen=True)
class ThroughputModel:
    """The model's parameters: seconds, and seconds a sample (`beta_grad`) or a rank (`beta_local`,
    `beta_node`).
    """

    alpha_grad: float
    beta_grad: float
    alpha_local: float
    beta_local: float
    alpha_node: float
    beta_node: float
    gamma: float

    def gradient_s(self, local_bsz: Any) -> Any:
        """T_grad: seconds for one micro-batch."""
        return self.alpha_grad + self.beta_grad * local_bsz

    def sync_s(self, nodes: Any, world_size: Any) -> Any:
        """T_sync: seconds for one all-reduce of the gradients."""
        one_node = np.equal(nodes, 1)
        alpha = np.where(one_node, self.alpha_local, self.alpha_node)
        beta = np.where(one_node, self.beta_local, self.beta_node)
        return np.where(np.equal(world_size, 1), 0.0, alpha + beta * np.subtract(world_size, 2))

    def step_s(self, nodes: Any, world_size: Any, local_bsz: Any, accumulation_steps: Any) -> Any:
        """T_step: seconds for one optimizer step. All arguments may be arrays."""
        gradient = np.maximum(self.gradient_s(local_bsz), FLOOR_S)
        sync = self.sync_s(nodes, world_size)
        # As longer · (1 + (shorter/longer)^γ)^(1/γ) no power overflows.
        longer, shorter = np.maximum(gradient, sync), np.minimum(gradient, sync)
        last = longer * (1.0 + (shorter / longer) ** self.gamma) ** (1.0 / self.gamma)
        return (accumulation_steps - 1) * gradient + last

    def throughput(self, nodes: int, world_size: int, local_bsz: Any, accumulation_steps: Any) -> Any:
        """Samples a second over all ranks."""
        rows = world_size * local_bsz * accumulation_steps
        return rows / self.step_s(nodes, world_size, local_bsz, accumulation_steps)


def fit(times: Mapping[Configuration, float]) -> ThroughputModel:
    """The model that fits the measured seconds a step best: least squares of log T, as in the paper (RMSLE).

    What was not tried cannot be told, and is taken as the paper does, optimistically, so that it is tried:
    no more than one rank seen, no cost of an all-reduce; no more than two, none that grows with the ranks;
    nodes cost what ranks of one node cost until more than one was seen. With a single micro-batch size, half
    of the time is constant. An all-reduce is told from T_grad by another number of ranks or of micro-batches,
    or by four sizes of micro-batch (as many as the curve has parameters); until then it is half of the
    constant, so that accumulation is worth a try.
    Needs scipy.
    """
    _check(times)
    try:
        from scipy.optimize import least_squares  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            "fitting step times needs scipy, which is not installed: pip install scipy"
        ) from error

    keys = list(times)
    columns = np.array(keys, dtype=np.float64).T
    log_times = np.log([times[key] for key in keys])
    sizes = {key.local_bsz for key in keys}
    smallest = min(sizes)
    shortest = min(times.values())
    told = _tells_sync(keys)
    free = _free(keys)
    fixed = np.array([0.0] * 6 + [1.0])
    half = shortest / 2.0
    guess = np.array([half, half / smallest, half / 4.0, half / 64.0, half / 4.0, half / 64.0, 1.0])
    lower = np.array([0.0] * 6 + [1.0])
    upper = np.array([np.inf] * 6 + [GAMMA_MAX])
    unit = np.array([shortest, shortest / smallest, shortest, shortest, shortest, shortest, 1.0])

    def whole(part: Floats) -> ThroughputModel:
        values = fixed.copy()
        values[free] = part * unit[free]
        if len(sizes) == 1:
            values[0] = values[1] * smallest
        return ThroughputModel(*(float(value) for value in values))

    def residuals(part: Floats) -> Floats:
        model = whole(part)
        predicted = np.maximum(model.step_s(*columns), FLOOR_S)
        # The last term decides between models that fit alike: the one with less overlap is the simpler.
        return np.append(np.log(predicted) - log_times, 1e-3 * (model.gamma - 1.0))

    best = None
    for gamma in (1.0 + 1e-3, 2.0, 5.0):  # the cost has valleys along γ: start in each
        start = guess.copy()
        start[6] = gamma
        found = least_squares(
            residuals,
            start[free] / unit[free],
            bounds=(lower[free] / unit[free], upper[free] / unit[free]),
        )
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    model = whole(best.x)
    if not told and any(key.world_size > 1 for key in keys):
        half = model.alpha_grad / 2.0
        one_node = keys[0].nodes == 1
        model = replace(
            model,
            alpha_grad=half,
            alpha_local=half if one_node else 0.0,
            alpha_node=0.0 if one_node else half,
        )
    if not any(key.nodes > 1 for key in keys):
        model = replace(model, alpha_node=model.alpha_local, beta_node=model.beta_local)
    return model


def _check(times: Mapping[Configuration, float]) -> None:
    if not times:
        raise ValueError("no step times to fit")
    for configuration, seconds in times.items():
        if not (seconds > 0.0 and math.isfinite(seconds)):
            raise ValueError(f"{configuration}: a step time of {seconds} s; must be finite and more than 0")


def _tells_sync(keys: Sequence[Configuration]) -> bool:
    """Whether these measurements can tell the all-reduce from T_grad."""
    return (
        len({(key.nodes > 1, key.world_size) for key in keys}) > 1
        or len({key.accumulation_steps for key in keys}) > 1
        or len({key.local_bsz for key in keys}) >= 4
    )


def _free(keys: Sequence[Configuration]) -> npt.NDArray[np.bool_]:
    """Which of α_grad, β_grad, α_local, β_local, α_node, β_node, γ these measurements can tell."""
    local = {key.world_size for key in keys if key.nodes == 1 and key.world_size > 1}
    node = {key.world_size for key in keys if key.nodes > 1}
    several_sizes = len({key.local_bsz for key in keys}) > 1
    told = _tells_sync(keys)
    return np.array(
        [
            several_sizes,  # else α_grad is tied to β_grad
            True,
            told and bool(local),
            told and len(local) > 1,
            told and bool(node),
            told and len(node) > 1,
            told and bool(local or node) and several_sizes,
        ]
    )
