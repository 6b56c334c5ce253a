"""The loaders that Trainer iterates, and the callback that saves their position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from accelerate.utils import recursively_apply
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from .. import Batch, ConfigError, Dataset, Loader
from .._preemption import PreemptionNotice

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from transformers import TrainerControl, TrainerState, TrainingArguments

#: From a batch of feedstock to the arguments of the model.
Prepare = Callable[[dict[str, Any]], dict[str, Any]]


class TrainerLoader:
    """The loader of this process's rank, whose batches are the model's arguments.

    It is not a torch DataLoader, so Accelerate does not change it.
    """

    def __init__(self, loader: Loader, prepare: Prepare, dataset: Dataset | None = None) -> None:
        self.loader = loader
        self._prepare = prepare
        self._resumed = False
        if dataset is not None:
            self.dataset = dataset  #: for Trainer's counts of examples; it reads its length only

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._prepared, self.loader)  # unlike a generator, keeps no batch and so no slot

    def _prepared(self, batch: Any) -> dict[str, Any]:
        return self._prepare(batch.torch(ids=True) if isinstance(batch, Batch) else batch)

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def batch_size(self) -> int | None:
        """Rows of this process's batches; ``None`` if a total bounds them."""
        return self.loader.batch_size

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's state."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the loader's state. The next ``set_epoch`` must agree with it."""
        self.loader.load_state_dict(dict(state))
        self._resumed = True

    def set_epoch(self, epoch: int) -> None:
        """Goes to an epoch; a resumed loader must be in that epoch already.

        Trainer computes the epoch from its count of updates. If an epoch has another number of updates than when the
        checkpoint was written, the result is not the epoch of the loader, and using it would leave samples out.

        Raises:
            ConfigError: The loader was resumed in another epoch.
        """
        resumed, self._resumed = self._resumed, False
        if resumed and epoch != self.loader.epoch:
            raise ConfigError(
                f"the checkpoint is of epoch {self.loader.epoch} of the data, but Trainer, with {len(self)} steps an "
                f"epoch now, computes epoch {epoch}: the global batch size has changed since. Keep it when the world "
                "size changes, with batch(global_batch_size=…), and keep gradient_accumulation_steps"
            )
        self.loader.set_epoch(epoch)


class LoaderState(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Saves the loader's state in Trainer's checkpoints and restores it. :class:`TrainerMixin` adds it.

    In a worker of Ray Train, it also makes Trainer save when the node of a rank is about to leave.

    It reads a checkpoint's state from ``TrainerState``, with and without
    ``restore_callback_states_from_checkpoint``.
    """

    def __init__(self, loader_state: dict[str, Any] | None = None) -> None:
        self.loader_state = loader_state
        self.loader: TrainerLoader | None = None
        self._notice = PreemptionNotice()

    def state(self) -> dict[str, Any]:
        """Returns the entry for ``trainer_state.json``: the position after the delivered batches, all of which were
        trained on when Trainer saves."""
        state = self.loader_state if self.loader is None else self.loader.state_dict()
        return {"args": {"loader_state": state}, "attributes": {}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Moves the loader to the position of the checkpoint."""
        loader = kwargs.get("train_dataloader")
        self.loader = loader if isinstance(loader, TrainerLoader) else None
        if self.loader is None:
            return
        saved = state.stateful_callbacks.get(type(self).__name__)
        loader_state = saved["args"]["loader_state"] if isinstance(saved, dict) else None
        if loader_state is not None:
            self.loader.load_state_dict(loader_state)
        elif state.global_step > 0:
            raise ConfigError(
                f"the checkpoint of step {state.global_step} has no position in the data, because no TrainerMixin "
                "wrote it; start from its weights only, or use another checkpoint"
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sets the epoch as a fraction of the whole epoch, also after a resume; requests a checkpoint if one is due."""
        if self.loader is not None:
            loader = self.loader.loader
            state.epoch = loader.epoch + 1 - loader.steps_left / len(loader)
        if args.save_strategy != "no" and self._notice.due():
            control.should_save = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Drops the loader, so that the next ``train()`` does not begin at its end."""
        self.release()

    def release(self) -> None:
        """Drops the loader, and frees its memory although Trainer keeps it."""
        loader, self.loader = self.loader, None
        if loader is not None:
            loader.loader._release()


class EvalLoader:
    """A loader for evaluation: every iteration is the whole data set once.

    Rows that are not valid (padding of the last step, and substitutes of ``on_error="skip"``) are removed from what
    Trainer gathers. Trainer's ``gather_for_metrics`` removes only torch's padding at the end of the last batch.
    """

    def __init__(self, loader: Loader, prepare: Prepare, dataset: Dataset, accelerator: Accelerator) -> None:
        self.loader = loader
        self.dataset = dataset  #: Trainer reads its length, the number of evaluated samples
        self.batch_size: int | None = loader.batch_size
        self.end_of_dataloader: bool = False  #: as in Accelerate's data loaders, for batch_eval_metrics
        self.remainder = 0
        self._prepare = prepare
        self._accelerator = accelerator
        self._valid: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        accelerator, steps = self._accelerator, len(self)
        self.end_of_dataloader = False
        accelerator.gradient_state._add_dataloader(self)
        try:
            batches = map(self._prepared, self.loader)
            for step in range(1, steps + 1):
                self.end_of_dataloader = step == steps
                yield next(batches)  # without a variable, which would hold the batch and its slot
        finally:
            accelerator.gradient_state._remove_dataloader(self)

    def _prepared(self, batch: dict[str, Any]) -> dict[str, Any]:
        self._valid = self._accelerator.gather(batch["valid"].to(self._accelerator.device))
        return self._prepare(batch)

    def gather(self, data: Any) -> Any:
        """Returns the valid rows of all processes.

        Args:
            data: Tensors of the last step, nested in lists, tuples and dicts.
        """
        gathered = self._accelerator.gather(data)
        valid = self._valid
        if valid is None or valid.all():
            return gathered
        return recursively_apply(lambda rows: rows[valid.to(rows.device)], gathered)
