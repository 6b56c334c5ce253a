"""Every few steps: all processes share what they measured, and agree on the batch size."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from feedstock import ConfigError

from .autoscaler import Autoscaler, Decision
from .exchange import Exchange
from .meter import GradientMeter, NoiseSample, combine
from .throughput import Configuration
from .timer import StepTimer

if TYPE_CHECKING:
    import torch


class Report(NamedTuple):
    """What one process tells the others."""

    epoch: int
    position: int
    host: str
    timed_steps: int
    elapsed_s: float
    noise: NoiseSample | None
    """None if no gradient was seen."""


class Tuner:
    """Measures steps and gradients of this process, and takes part in the decisions of all.

    Invariant: what enters the autoscaler is the same in every process, in the same order, so that any
    process's state can be saved; what to do is computed at place 0 and told to the others, so that a rounding
    difference between machines cannot part them.
    """

    def __init__(
        self, scaler: Autoscaler, exchange: Exchange, interval: int, clock: Callable[[], float]
    ) -> None:
        self.scaler = scaler
        self.exchange = exchange
        self.enabled = False  # whether the batch size may change
        self.timer = StepTimer(clock)
        self._interval = interval
        self._meter: GradientMeter | None = None
        self._steps = 0  # since the last agreement
        self._observed = False

    def watch(self, parameters: Iterable[torch.nn.Parameter], world_size: int) -> None:
        """Measures the gradients of these parameters from now on."""
        meter = GradientMeter(parameters, world_size)
        self.close()
        self._meter = meter

    def close(self) -> None:
        """Takes the hooks off the parameters."""
        if self._meter is not None:
            self._meter.close()
            self._meter = None

    def observe(self, local_bsz: int, accumulation_steps: int, loss_scale: float) -> None:
        """Reads the gradients of a step (see `GradientMeter.observe`)."""
        if self._meter is None:
            raise ConfigError("observe: no model is watched: call watch(model) first")
        self._meter.observe(local_bsz, accumulation_steps, loss_scale)
        self._observed = True

    def reconfigured(self, world_size: int) -> None:
        """The batch size or the ranks changed: what was measured and not shared yet is void."""
        if self._meter is not None:
            self._meter.world_size = world_size
            self._meter.discard()
        self.timer.warm_up()

    def end_step(self, whole: bool) -> None:
        """An optimizer step ended; `whole`: it had as many micro-batches as the others, its time counts."""
        self._steps += 1
        if whole:
            self.timer.step()
        else:
            self.timer.pause()

    def look_again(self) -> None:
        """Agrees before the next step."""
        self._steps = max(self._steps, self._interval)

    @property
    def is_due(self) -> bool:
        """Whether it is time to agree. A process that neither watches a model nor may change anything never
        does.
        """
        return self._steps >= self._interval and (self.enabled or self._meter is not None)

    def agree(self, epoch: int, position: int, configuration: Configuration) -> Decision | None:
        """Collective: shares the measurements, and returns what all shall do; None is to go on as they are.

        configuration: the present one; its nodes are counted here.
        """
        timed_steps, elapsed_s = self.timer.take()
        noise = self._meter.take() if self._meter is not None and self._observed else None
        mine = Report(epoch, position, socket.gethostname(), timed_steps, elapsed_s, noise)
        reports = self.exchange.all_gather(mine)
        self._check(reports)
        current = configuration._replace(nodes=len({report.host for report in reports}))
        self._record(reports, current)
        decision = None
        if self.enabled:
            decision = self.exchange.broadcast(
                self.scaler.decide(current) if self.exchange.rank == 0 else None
            )
        self._steps = 0
        self._observed = False
        self.timer.resume()
        return decision

    def _check(self, reports: Sequence[Report]) -> None:
        """Every process finds the same faults, so that none waits for one that has stopped."""
        places = sorted({(report.epoch, report.position) for report in reports})
        if len(places) > 1:
            raise ConfigError(
                f"the ranks stand at different places (epoch, position): {places}; all must load the same state and "
                "take the same batches in step"
            )
        blind = [place for place, report in enumerate(reports) if report.noise is None]
        if blind:
            raise ConfigError(
                f"no gradient was seen in {self._steps} optimizer steps by processes {blind} of {len(reports)}, so no "
                "batch size can be chosen: call watch(model) before the first step, and observe() in every optimizer "
                "step"
            )

    def _record(self, reports: Sequence[Report], current: Configuration) -> None:
        timed_steps = sum(report.timed_steps for report in reports)
        if timed_steps > 0:
            self.scaler.record_time(current, sum(report.elapsed_s for report in reports) / timed_steps)
        noise = combine([report.noise for report in reports if report.noise is not None])
        if noise is not None:
            steps, sqr, var, successive = noise
            scale = current.batch_size / self.scaler.limits.initial_batch_size
            self.scaler.noise.update(sqr, var, steps, scale, successive)
