"""What Trainer iterates, and the callback that keeps its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from accelerate.utils import recursively_apply
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from .. import Batch, ConfigError, Dataset, Loader

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from transformers import TrainerControl, TrainerState, TrainingArguments

#: A batch as feedstock makes it, to one as the model takes it.
Prepare = Callable[[dict[str, Any]], dict[str, Any]]


class TrainerLoader:
    """What Trainer iterates: the loader of this process's rank, its batches as the model's arguments.

    Not torch's DataLoader, so Accelerate leaves it alone.
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
        """Rows for this process, ``None`` where batches are bounded by a total."""
        return self.loader.batch_size

    def state_dict(self) -> dict[str, Any]:
        """The loader's."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The loader's; the next ``set_epoch`` must then agree with it."""
        self.loader.load_state_dict(dict(state))
        self._resumed = True

    def set_epoch(self, epoch: int) -> None:
        """The loader's, but for a resumed one it may not move.

        Trainer computes the epoch from its count of updates. If an epoch has another number of updates than
        when the checkpoint was written, that is not where the data stands, and following it would leave
        samples out.
        """
        resumed, self._resumed = self._resumed, False
        if resumed and epoch != self.loader.epoch:
            raise ConfigError(
                f"the checkpoint stands in epoch {self.loader.epoch} of the data, but Trainer, with "
                f"{len(self)} steps an epoch now, computes epoch {epoch}: the global batch was another when it "
                "was written. Keep it over a change of world size with batch(global_batch_size=…), and keep "
                "gradient_accumulation_steps"
            )
        self.loader.set_epoch(epoch)


class LoaderState(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Carries the loader's state into Trainer's checkpoints and back. :class:`TrainerMixin` adds it.

    It reads what a checkpoint holds from ``TrainerState``, so it does not need
    ``restore_callback_states_from_checkpoint``, and does no harm with it.
    """

    def __init__(self, loader_state: dict[str, Any] | None = None) -> None:
        self.loader_state = loader_state
        self.loader: TrainerLoader | None = None

    def state(self) -> dict[str, Any]:
        """For ``trainer_state.json``: the batches that were delivered by now, which at a save are those
        trained on."""
        state = self.loader_state if self.loader is None else self.loader.state_dict()
        return {"args": {"loader_state": state}, "attributes": {}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Puts the loader where the checkpoint stood."""
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
                f"the checkpoint of step {state.global_step} holds no place in the data: it was not written "
                "by a TrainerMixin. Start from its weights alone, or name another checkpoint"
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The epoch as a fraction, of the whole epoch also where it was resumed."""
        if self.loader is not None:
            loader = self.loader.loader
            state.epoch = loader.epoch + 1 - loader.steps_left / len(loader)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Lets go of the loader, so that another ``train()`` does not begin with its end."""
        self.loader = None


class EvalLoader:
    """Evaluation: every iteration is the whole set once, and rows that are not valid (padding of the last
    step, and substitutes under ``on_error("skip")``) are left out of what Trainer gathers.

    Trainer's own ``gather_for_metrics`` cuts torch's padding off the end of the last batch, and knows no
    other.
    """

    def __init__(self, loader: Loader, prepare: Prepare, dataset: Dataset, accelerator: Accelerator) -> None:
        self.loader = loader
        self.dataset = dataset  #: Trainer reads its length: the number of samples evaluated
        self.batch_size = loader.batch_size
        self.end_of_dataloader = False  #: as Accelerate's data loaders tell it, for batch_eval_metrics
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
                yield next(batches)  # not by a name, which would hold the batch and its slot
        finally:
            accelerator.gradient_state._remove_dataloader(self)

    def _prepared(self, batch: dict[str, Any]) -> dict[str, Any]:
        self._valid = self._accelerator.gather(batch["valid"].to(self._accelerator.device))
        return self._prepare(batch)

    def gather(self, data: Any) -> Any:
        """The valid rows of all processes, of tensors (nested in lists, tuples and dictionaries) of the step
        that was yielded last."""
        gathered = self._accelerator.gather(data)
        valid = self._valid
        if valid is None or valid.all():
            return gathered
        return recursively_apply(lambda rows: rows[valid.to(rows.device)], gathered)
