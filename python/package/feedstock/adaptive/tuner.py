"""Shares the measurements of all processes every few steps, and agrees on the batch size."""

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
    """The measurements that a process sends to the others."""

    epoch: int
    position: int
    host: str
    timed_steps: int
    elapsed_s: float
    noise: NoiseSample | None
    """None if no gradient was measured."""


class Tuner:
    """Measures steps and gradients of this process, and takes part in the decisions of all.

    Invariant: the autoscaler of every process gets the same measurements in the same order, so any process's state can
    be saved. Rank 0 computes the decision and sends it to the others, so that rounding differences between machines
    cannot cause different decisions.
    """

    def __init__(
        self, scaler: Autoscaler, exchange: Exchange, interval: int, clock: Callable[[], float]
    ) -> None:
        self.scaler = scaler
        self.exchange = exchange
        self.enabled = False  # whether the batch size may change
        self.timer: StepTimer = StepTimer(clock)
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
        """Removes the hooks from the parameters."""
        if self._meter is not None:
            self._meter.close()
            self._meter = None

    def observe(self, local_bsz: int, accumulation_steps: int, loss_scale: float) -> None:
        """Reads the gradients of a step (see `GradientMeter.observe`)."""
        if self._meter is None:
            raise ConfigError("observe: no model is watched; call watch(model) first")
        self._meter.observe(local_bsz, accumulation_steps, loss_scale)
        self._observed = True

    def reconfigured(self, world_size: int) -> None:
        """Discards measurements that are not shared yet, because the batch size or the ranks changed."""
        if self._meter is not None:
            self._meter.world_size = world_size
            self._meter.discard()
        self.timer.warm_up()

    def end_step(self, whole: bool) -> None:
        """Records the end of an optimizer step; its time counts if it was `whole`: with all of its micro-batches."""
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
        """Whether to agree now. A process that watches no model and may not change the batch size never does."""
        return self._steps >= self._interval and (self.enabled or self._meter is not None)

    def agree(self, epoch: int, position: int, configuration: Configuration) -> Decision | None:
        """Shares the measurements and returns the decision for all processes; None for no change. Collective.

        Args:
            epoch: This process's epoch, which must be that of all.
            position: This process's position, which must be that of all.
            configuration: The current configuration. Its nodes are counted here.

        Raises:
            ConfigError: Processes are at different positions, or did not measure gradients.
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
        """Raises the same errors in every process, so that none waits for one that has stopped."""
        places = sorted({(report.epoch, report.position) for report in reports})
        if len(places) > 1:
            raise ConfigError(
                f"the ranks are at different positions (epoch, position): {places}; all must load the same state and "
                "take the same number of batches"
            )
        blind = [place for place, report in enumerate(reports) if report.noise is None]
        if blind:
            raise ConfigError(
                f"processes {blind} of {len(reports)} measured no gradient in {self._steps} optimizer steps, so no "
                "batch size can be chosen; call watch(model) before the first step, and observe() in every optimizer "
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
