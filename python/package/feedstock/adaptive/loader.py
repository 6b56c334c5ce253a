"""A loader around a `Loader`: counts optimizer steps, and reconfigures the `Loader` between two of them.

```text
 for batch in AdaptiveLoader ──▶ Loader ──▶ batch ──▶ backward ──▶ observe() ──▶ optimizer.step()
        │                                                              │ gradient norms
        └── every `interval` steps: step time and norms ──▶ all ranks ──▶ Autoscaler ──▶ Loader.reconfigure
``` Invariants: a decision is made between two optimizer steps, at a step that every rank counts, from measurements that
every rank has. It does not change the order of the samples: a new batch size continues at the same position, so every
sample of an epoch is still delivered once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from feedstock import ConfigError
from feedstock._check import real, whole
from feedstock._options import LoaderOptions, documents_loader_options, takes_loader_options

from .accumulator import Accumulator
from .autoscaler import MIN_SPEEDUP, Autoscaler, Decision
from .exchange import Exchange, default_exchange
from .goodput import Limits
from .noise import GradientStatistics
from .scaling import AdaScale, ScalingRule
from .source import with_options
from .throughput import Configuration
from .tuner import Tuner

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from feedstock import Loader, Pipeline
    from feedstock.ray import DataIterator

log: logging.Logger = logging.getLogger(__name__)

INTERVAL_STEPS = 100  # between decisions: a change costs a refill of the pipeline, about one step


@documents_loader_options
class AdaptiveLoader:
    """A `Loader` whose batch size follows the goodput, with epochs, sums and state for elastic training.

    ```python
    loader = AdaptiveLoader(pipeline, device="cuda")    # this rank's of torch.distributed
    loader.autoscale_batch_size(max_batch_size=4096, local_bsz_bounds=(32, 256))
    loader.watch(model)
    for epoch in loader.remaining_epochs_until(90):
        for batch in loader:
            loss = loss_fn(model(batch["image"]), batch["label"]) / loader.accumulation_steps
            loss.backward()
            if loader.is_optimizer_step:
                loader.observe()                      # before clipping
                with loader.scaled_lr(optimizer):     # or use loader.lr_factor as you like
                    optimizer.step()
                optimizer.zero_grad()
    ```

    Args:
        loader: A pipeline, of which `feedstock.torch.loader` makes this rank's loader; a loader; or the result of
            `ray.train.get_dataset_shard`. Its batches have a number of rows, not a total length.
        rule: How the learning rate follows the batch size; default: `AdaScale()`.
        exchange: How the processes communicate; default: torch.distributed. All that run a step together take part.
        interval: Optimizer steps between decisions, at least 2; default 100.
        min_speedup: The ratio of goodputs that a change must promise, at least 1; default 1.05.
        smoothing: The weight that the average noise scale keeps at a step of the initial batch size, between 0 and 1;
            default 0.999.
        clock: Returns monotonic seconds; default: `time.perf_counter`.
        **options: See `LoaderOptions`; the default of `output` is `"torch"`. For the result of `get_dataset_shard`,
            those that differ from their defaults replace its own. A loader keeps the options that it was made with.

    Raises:
        ConfigError: The loader's batches are bounded by a total, it was made with `restart=True`, options are given
            for it, or a number is out of range.
    """

    @takes_loader_options(output="torch", without=("restart",))
    def __init__(
        self,
        loader: Pipeline | Loader | DataIterator,
        *,
        rule: ScalingRule | None = None,
        exchange: Exchange | None = None,
        interval: int = INTERVAL_STEPS,
        min_speedup: float = MIN_SPEEDUP,
        smoothing: float = 0.999,
        clock: Callable[[], float] = time.perf_counter,
        **options: Unpack[LoaderOptions],
    ) -> None:
        loader = with_options(loader, options)
        initial = loader.global_batch_size
        if initial is None:
            raise ConfigError(
                "loader must have batches of a number of rows (batch_size or global_batch_size); got batches bounded "
                "by a total"
            )
        if loader.restart:
            raise ConfigError(
                "loader must be made with restart=False; got restart=True, which starts over at every change"
            )
        interval = whole("interval", interval, 2)  # optimizer steps, of which one is timed
        smoothing = real("smoothing", smoothing, "> 0 and < 1", lambda number: 0.0 < number < 1.0)
        min_speedup = real("min_speedup", min_speedup, ">= 1", lambda number: number >= 1.0)
        self._loader = loader
        self._rule = rule if rule is not None else AdaScale()
        rows = -(-initial // loader.world_size)
        scaler = Autoscaler(Limits(initial, initial, (rows, rows)), min_speedup, smoothing)
        exchange = exchange if exchange is not None else default_exchange(loader.world_size)
        self._tuner = Tuner(scaler, exchange, interval, clock)
        self._accumulators: dict[str, Accumulator] = {}
        self._decision: Decision | None = None
        self._progress = 0.0
        self._accumulation_steps = 1  # as decided
        self._step_parts = 1  # micro-batches of the step under way: fewer at an epoch's end
        self._part = 0  # of which this number was delivered
        self._step_state: dict[str, Any] | None = None  # the loader's state before a step of several parts
        self._changed = False  # the loader was reconfigured and needs a new iterator
        self._look_again = False  # decide again in the next epoch
        self._restored: int | None = None  # the batch size of a loaded state, until it is applied
        self._epoch: int | None = None  # of remaining_epochs_until, while it runs
        self._finished_epochs = 0
        self._finished_passes = 0  # epochs whose batches were all delivered

    @property
    def loader(self) -> Loader | DataIterator:
        """The inner loader, for `stats()`, `ledger()` and so on. Do not iterate it while you iterate this one."""
        return self._loader

    @property
    def rank(self) -> int:
        """This process's rank in the data-parallel group."""
        return self._loader.rank

    @property
    def world_size(self) -> int:
        """The number of ranks in the data-parallel group."""
        return self._loader.world_size

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._loader.epoch

    @property
    def position(self) -> int:
        """The global position of the next batch, in samples of all ranks."""
        return self._loader.position

    @property
    def steps_left(self) -> int:
        """The number of batches from here to the epoch's end, at the current batch size."""
        return self._loader.steps_left

    def __len__(self) -> int:
        """Returns the batches of the whole epoch, at the current batch size."""
        return len(self._loader)

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch on this rank: one micro-batch."""
        return self._loader.batch_size

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of the current optimizer step (1: no accumulation); divide the loss by it.

        The last step of an epoch may have fewer than the others.
        """
        return self._step_parts

    @property
    def is_optimizer_step(self) -> bool:
        """Whether the current batch is the last of its optimizer step. Before it, DDP may skip its all-reduce
        (`no_sync`)."""
        return self._part == self._step_parts

    @property
    def global_batch_size(self) -> int:
        """Rows of the current optimizer step, over all ranks and micro-batches."""
        return self._micro_batch() * self._step_parts

    @property
    def initial_batch_size(self) -> int:
        """M₀: rows of an optimizer step over all ranks at the start of training, for which the learning rate was
        tuned."""
        return self._tuner.scaler.limits.initial_batch_size

    @property
    def statistics(self) -> GradientStatistics | None:
        """|G|² and tr(Σ) at the last decision; None before gradients were measured."""
        return self._tuner.scaler.statistics

    @property
    def profile(self) -> dict[Configuration, float]:
        """Seconds of an optimizer step for every configuration that was measured."""
        return self._tuner.scaler.profile

    @property
    def decision(self) -> Decision | None:
        """The last change of the batch size, with its predictions."""
        return self._decision

    @property
    def lr_factor(self) -> float:
        """The factor of the learning rate for the current optimizer step."""
        return self._rule.factor(self.statistics, self.global_batch_size, self.initial_batch_size)

    @property
    def progress(self) -> float:
        """Finished optimizer steps in steps of the initial batch size: the sum of the gains.

        These are AdaScale's scale-invariant iterations. Use them for a schedule that was written for the initial batch
        size.
        """
        return self._progress

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int | None, int | None] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Lets the batch size follow the goodput. Every rank must call it with equal arguments, before the first step.

        Args:
            max_batch_size: The most rows of an optimizer step over all ranks; at least the initial batch size.
            local_bsz_bounds: The fewest and most rows of a micro-batch on one rank, by its memory; default: 1 and
                `max_batch_size`. A current number outside of them is moved inside, if the step keeps its rows.
            gradient_accumulation: Whether a step may have several micro-batches; default `False`. The training loop
                must then use `accumulation_steps` and `is_optimizer_step`.

        Raises:
            ConfigError: A number is out of range.
        """
        initial = self.initial_batch_size
        max_batch_size = whole("max_batch_size", max_batch_size)
        if max_batch_size < initial:
            raise ConfigError(
                f"max_batch_size must be >= {initial}, the rows of the initial batch size; got {max_batch_size}"
            )
        low, high = local_bsz_bounds if local_bsz_bounds is not None else (None, None)
        low = 1 if low is None else whole("local_bsz_bounds[0]", low, 1)
        high = max_batch_size if high is None else whole("local_bsz_bounds[1]", high, 1)
        if low > high:
            raise ConfigError(f"local_bsz_bounds must be (smallest, largest); got ({low}, {high})")
        most = max(1, -(-max_batch_size // (self.world_size * low))) if gradient_accumulation else 1
        scaler = self._tuner.scaler
        scaler.limits = Limits(initial, max_batch_size, (low, high), most)
        self._tuner.enabled = True
        if self._restored is not None:
            self._place_restored()
        elif not low <= self._local_bsz() <= high:
            rows, steps = scaler.place(self._micro_batch(), self.world_size)
            if rows * steps * self.world_size < self._micro_batch():
                raise ConfigError(
                    f"local_bsz_bounds must include the current {self._local_bsz()} rows of each rank; got "
                    f"({low}, {high}). Widen them, start with another batch size, or set gradient_accumulation=True"
                )
            self._accumulation_steps = steps
            self._apply(None, self.world_size, rows * self.world_size)

    def watch(self, model: torch.nn.Module | Iterable[torch.nn.Parameter]) -> None:
        """Measures the noise scale on the gradients of a model, or of parameters.

        Call it after wrapping the model with DDP or FSDP2, on every rank. With DDP, and with accumulation, the
        gradients of micro-batches are compared with their mean, otherwise those of successive steps. A further call
        replaces the model.
        """
        parameters = model.parameters() if hasattr(model, "parameters") else model
        self._tuner.watch(parameters, self.world_size)

    def accumulator(self, name: str) -> Accumulator:
        """Returns the accumulator of this name: sums over ranks and restarts, saved with the loader's state."""
        return self._accumulators.setdefault(name, Accumulator(self._tuner.exchange))

    def observe(self, loss_scale: float = 1.0) -> None:
        """Reads the gradients for the noise scale: after the last backward of an optimizer step, before clipping.

        Args:
            loss_scale: The factor of the loss, GradScaler's `get_scale()`; default 1.

        Raises:
            ConfigError: The optimizer step has further micro-batches, or no model is watched.
        """
        if not self.is_optimizer_step:
            raise ConfigError(
                f"observe: this is micro-batch {self._part} of {self._step_parts} of its optimizer step; call it when "
                "is_optimizer_step is true"
            )
        self._tuner.observe(self._local_bsz(), self._step_parts, loss_scale)

    @contextlib.contextmanager
    def scaled_lr(self, optimizer: torch.optim.Optimizer) -> Iterator[float]:
        """Multiplies the learning rates of all parameter groups by `lr_factor` inside the block."""
        factor = self.lr_factor
        before = [group["lr"] for group in optimizer.param_groups]
        try:
            for group, rate in zip(optimizer.param_groups, before, strict=True):
                group["lr"] = rate * factor
            yield factor
        finally:
            for group, rate in zip(optimizer.param_groups, before, strict=True):
                group["lr"] = rate

    @contextlib.contextmanager
    def untimed(self) -> Iterator[None]:
        """Excludes the block from the times of steps, for example an evaluation or a checkpoint within an epoch."""
        with self._tuner.timer.untimed():
            yield

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of an epoch, or of its rest.

        Inside `remaining_epochs_until` it is the epoch of that loop. It yields nothing if all batches of that epoch
        were delivered before a restart.
        """
        loader = self._loader
        if self._epoch is not None:
            if self._finished_passes > self._epoch:
                return
            loader.set_epoch(self._epoch)
        epoch = loader.epoch
        self._part = 0
        self._step_state = None
        self._changed = False
        self._tuner.timer.pause()
        if self._look_again:
            self._look_again = False
            self._tuner.look_again()
        batches = iter(loader)
        left = self._steps_left_of(epoch)
        while left > 0:
            if self._tuner.is_due:
                self._agree(left)
            if self._changed:
                self._changed = False
                batches = iter(loader)
                left = self._steps_left_of(epoch)
                if left == 0:
                    break
            self._step_parts = min(self._accumulation_steps, left)
            self._step_state = loader.state_dict() if self._step_parts > 1 else None
            while self._part < self._step_parts:
                batch = next(batches)
                self._part += 1
                left -= 1
                if left == 0:
                    self._finished_passes = epoch + 1
                yield batch
                del batch  # or it would keep its slot while this waits for the next
            self._end_step()
        self._finished_passes = epoch + 1

    def remaining_epochs_until(self, epochs: int) -> Iterator[int]:
        """Yields the remaining epochs up to `epochs`, without repeating or skipping one after a restart.

        After `load_state_dict`, the first is the epoch whose loop body had not ended. Iterating the loader in it
        delivers its remaining batches; there are none if only code after the last batch remained.
        """
        if self._epoch is not None:
            raise ConfigError(f"remaining_epochs_until: the loop over epoch {self._epoch} has not ended")
        while self._finished_epochs < epochs:
            self._epoch = self._finished_epochs
            try:
                yield self._epoch
            finally:
                self._epoch = None
            # Not in `finally`: an epoch that was left by break or an exception is not done.
            self._finished_epochs += 1
            self._finished_passes = max(self._finished_passes, self._finished_epochs)

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of `epoch`, unless the next batch belongs to it; see `Loader.set_epoch`."""
        self._loader.set_epoch(epoch)
        self._finished_passes = self._finished_epochs = epoch

    def start_prefetch(self) -> None:
        """Begins to fetch and decode; see `Loader.start_prefetch`."""
        self._loader.start_prefetch()

    def close(self) -> None:
        """Closes the loader, and removes the hooks from the model."""
        self._tuner.close()
        self._loader.close()

    def __enter__(self) -> AdaptiveLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def reconfigure(
        self, rank: int | None = None, world_size: int | None = None, *, exchange: Exchange | None = None
    ) -> None:
        """Changes rank and world size from the next step on. The rows of an optimizer step stay, within the limits.

        Call it between two optimizer steps, on every rank. Call `watch` again for a model that was wrapped again.

        Args:
            rank: The new rank; default: unchanged.
            world_size: The new number of ranks; default: unchanged.
            exchange: How the processes communicate from now on; default: unchanged.

        Raises:
            ConfigError: An optimizer step is not finished.
        """
        if 0 < self._part < self._step_parts:
            raise ConfigError(
                f"reconfigure: this is micro-batch {self._part} of {self._step_parts} of an optimizer step; call it "
                "after the step"
            )
        if exchange is not None:
            self._tuner.exchange = exchange
            for accumulator in self._accumulators.values():
                accumulator.exchange = exchange
        ranks = self.world_size if world_size is None else world_size
        total = self._micro_batch() * self._accumulation_steps
        if self._tuner.enabled:
            local_bsz, self._accumulation_steps = self._tuner.scaler.place(total, ranks)
            self._apply(rank, ranks, local_bsz * ranks)
        else:
            self._apply(rank, ranks, self._micro_batch())

    def sync(self) -> None:
        """Shares the accumulators' additions, so that each rank's `state_dict` has those of all ranks. Collective."""
        for name in sorted(self._accumulators):
            self._accumulators[name].sync()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of training in plain values: the same on every rank, a few kilobytes at most.

        Within an optimizer step of several micro-batches, it is the state before that step: no checkpoint contains the
        step's gradients, so its samples must be delivered again. With accumulators, every rank must call `sync` first.
        """
        state = self._step_state if self._part < self._step_parts else None
        adaptive = {
            "batch_size": self._micro_batch() * self._accumulation_steps,
            "finished_epochs": self._finished_epochs,
            "finished_passes": self._finished_passes,
            "progress": self._progress,
            "scaler": self._tuner.scaler.state(),
            "accumulators": {name: one.state_dict() for name, one in self._accumulators.items()},
        }
        # As text, because torch.distributed.checkpoint loads only keys that the new loader's state already has.
        return {
            "version": 1,
            "loader": state if state is not None else self._loader.state_dict(),
            "adaptive": json.dumps(adaptive),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with a state, on any number of ranks. Every rank must load the same state.

        The saved batch size applies within the limits of `autoscale_batch_size`, which may be called before or after.
        Without that call, the loader keeps its batch size.
        """
        if state.get("version") != 1:
            raise ConfigError(f"the version of an adaptive state must be 1; got {state.get('version')!r}")
        adaptive = json.loads(state["adaptive"])
        self._loader.load_state_dict(state["loader"])
        self._tuner.scaler.load(adaptive["scaler"])
        self._finished_epochs = int(adaptive["finished_epochs"])
        # The rest of an epoch may be shorter than one batch here. Then the loader is in the next epoch.
        self._finished_passes = max(int(adaptive["finished_passes"]), self._loader.epoch)
        self._progress = float(adaptive["progress"])
        for name, sums in adaptive["accumulators"].items():
            self.accumulator(name).load_state_dict(sums)
        self._part = 0
        self._step_state = None
        self._accumulation_steps = 1
        self._changed = True
        self._tuner.reconfigured(self.world_size)
        self._restored = int(adaptive["batch_size"])
        if self._tuner.enabled:
            self._place_restored()

    def _place_restored(self) -> None:
        total, self._restored = self._restored, None
        if total is None:
            return
        local_bsz, self._accumulation_steps = self._tuner.scaler.place(total, self.world_size)
        placed = local_bsz * self.world_size * self._accumulation_steps
        if placed < total:
            log.warning(
                "the batch size is %d, not the saved %d: the limits do not allow more on %d ranks",
                placed,
                total,
                self.world_size,
            )
        self._apply(None, self.world_size, local_bsz * self.world_size)

    def _apply(self, rank: int | None, world_size: int, micro_batch: int) -> None:
        if rank is not None or world_size != self.world_size or micro_batch != self._micro_batch():
            self._loader.reconfigure(rank=rank, world_size=world_size, global_batch_size=micro_batch)
        # The rest of the epoch may be shorter than one batch now. Then the loader is in the next epoch.
        self._finished_passes = max(self._finished_passes, self._loader.epoch)
        self._tuner.reconfigured(world_size)
        self._changed = True

    def _agree(self, left: int) -> None:
        current = Configuration(1, self.world_size, self._local_bsz(), self._accumulation_steps)
        decision = self._tuner.agree(self.epoch, self.position, current)
        if decision is None:
            return
        before = self._micro_batch() * self._accumulation_steps
        after = decision.batch_size(self.world_size)
        if after > left * self._micro_batch():
            # The new batch would end the epoch here and lose its rest: decide again in the next epoch.
            self._look_again = True
            return
        log.info(
            "batch size %d → %d rows (%d micro-batches of %d on %d ranks): goodput %.4g → %.4g samples/s",
            before,
            after,
            decision.accumulation_steps,
            decision.local_bsz,
            self.world_size,
            decision.current_goodput,
            decision.goodput,
        )
        self._decision = decision
        self._accumulation_steps = decision.accumulation_steps
        self._apply(None, self.world_size, decision.local_bsz * self.world_size)

    def _end_step(self) -> None:
        statistics = self.statistics
        gain = 1.0
        if statistics is not None:
            gain = statistics.gain(self.global_batch_size, self.initial_batch_size)
        self._progress += gain
        self._part = 0
        self._step_state = None
        self._tuner.end_step(self._step_parts == self._accumulation_steps)

    def _steps_left_of(self, epoch: int) -> int:
        """Returns the remaining batches of an epoch.

        They are 0 if the rest of the epoch is shorter than a batch, so that the loader is in the next epoch already.
        """
        if self._loader.epoch != epoch:
            return 0
        try:
            return self._loader.steps_left
        except TypeError:  # a mix without end
            return sys.maxsize

    def _micro_batch(self) -> int:
        """Returns the rows of a micro-batch over all ranks."""
        rows = self._loader.global_batch_size
        assert rows is not None, "checked by the constructor, and reconfigure keeps the kind of bound"
        return rows

    def _local_bsz(self) -> int:
        """Returns the rows of a micro-batch on the rank with the most: the same number on every rank."""
        return -(-self._micro_batch() // self.world_size)
