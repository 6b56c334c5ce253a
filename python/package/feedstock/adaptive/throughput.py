"""Pollux's model of the time of a training step, and its fit to measured times.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021, section
3.2:

    T_grad(m) = α_grad + β_grad · m                                  seconds for m samples on one rank
    T_sync    = 0                                 K = 1              seconds to all-reduce, K ranks on N nodes
              = α_local + β_local · (K − 2)       N = 1, K ≥ 2
              = α_node  + β_node  · (K − 2)       N ≥ 2
    T_step    = (A − 1) · T_grad + (T_grad^γ + T_sync^γ)^(1/γ)       A micro-batches a step

γ is from 1 (no overlap) to 10 (practically the maximum: the all-reduce completely overlaps the backward pass). The
measured time is that of the whole step, including the wait for data and the optimizer, until the next step can begin.
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
        """Returns T_grad: seconds for one micro-batch."""
        return self.alpha_grad + self.beta_grad * local_bsz

    def sync_s(self, nodes: Any, world_size: Any) -> Any:
        """Returns T_sync: seconds for one all-reduce of the gradients."""
        one_node = np.equal(nodes, 1)
        alpha = np.where(one_node, self.alpha_local, self.alpha_node)
        beta = np.where(one_node, self.beta_local, self.beta_node)
        return np.where(np.equal(world_size, 1), 0.0, alpha + beta * np.subtract(world_size, 2))

    def step_s(self, nodes: Any, world_size: Any, local_bsz: Any, accumulation_steps: Any) -> Any:
        """Returns T_step: seconds for one optimizer step. All arguments may be arrays."""
        gradient = np.maximum(self.gradient_s(local_bsz), FLOOR_S)
        sync = self.sync_s(nodes, world_size)
        # In the form longer · (1 + (shorter/longer)^γ)^(1/γ), no power overflows.
        longer, shorter = np.maximum(gradient, sync), np.minimum(gradient, sync)
        last = longer * (1.0 + (shorter / longer) ** self.gamma) ** (1.0 / self.gamma)
        return (accumulation_steps - 1) * gradient + last

    def throughput(self, nodes: int, world_size: int, local_bsz: Any, accumulation_steps: Any) -> Any:
        """Returns samples a second over all ranks."""
        rows = world_size * local_bsz * accumulation_steps
        return rows / self.step_s(nodes, world_size, local_bsz, accumulation_steps)


def fit(times: Mapping[Configuration, float]) -> ThroughputModel:
    """Fits the model to measured seconds of steps: least squares of log T, as in the paper (RMSLE). Needs scipy.

    Like the paper, it assumes that untried configurations are good, so that they get explored:

    - Measured on one rank only: an all-reduce costs nothing. On two at most: its cost does not grow with the ranks.
    - Measured on one node only: several nodes cost the same as ranks of one node.
    - Measured with one size of micro-batch: half of the time is constant.
    - The cost of an all-reduce is distinguished from T_grad by different numbers of ranks or micro-batches, or by four
      sizes of micro-batch (the number of the curve's parameters). Before that, it is half of the constant, so that
      accumulation is tried.

    Raises:
        ConfigError: scipy is not installed.
        ValueError: There are no times, or one is not finite and above 0.
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
    separable = _separates_sync(keys)
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
        # The last term decides between models that fit equally well: the one with less overlap is simpler.
        return np.append(np.log(predicted) - log_times, 1e-3 * (model.gamma - 1.0))

    best = None
    for gamma in (1.0 + 1e-3, 2.0, 5.0):  # the cost has local minima along γ: start near each
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
    if not separable and any(key.world_size > 1 for key in keys):
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
            raise ValueError(f"{configuration}: a step time must be finite and > 0 s; got {seconds}")


def _separates_sync(keys: Sequence[Configuration]) -> bool:
    """Returns whether these measurements distinguish the all-reduce from T_grad."""
    return (
        len({(key.nodes > 1, key.world_size) for key in keys}) > 1
        or len({key.accumulation_steps for key in keys}) > 1
        or len({key.local_bsz for key in keys}) >= 4
    )


def _free(keys: Sequence[Configuration]) -> npt.NDArray[np.bool_]:
    """Returns which of α_grad, β_grad, α_local, β_local, α_node, β_node, γ these measurements determine."""
    local = {key.world_size for key in keys if key.nodes == 1 and key.world_size > 1}
    node = {key.world_size for key in keys if key.nodes > 1}
    several_sizes = len({key.local_bsz for key in keys}) > 1
    separable = _separates_sync(keys)
    return np.array(
        [
            several_sizes,  # else α_grad is tied to β_grad
            True,
            separable and bool(local),
            separable and len(local) > 1,
            separable and bool(node),
            separable and len(node) > 1,
            separable and bool(local or node) and several_sizes,
        ]
    )
