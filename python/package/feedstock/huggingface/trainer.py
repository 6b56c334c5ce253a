"""``transformers.Trainer`` over feedstock's loader.

Trainer's own way back into the middle of an epoch is to read and drop the batches before it
(``skip_first_batches``, which takes torch's DataLoader only). Here the place is part of the checkpoint:

    save      trainer_state.json ◀── LoaderState.state() ◀── loader.state_dict()       after an optimizer step
    resume    trainer_state.json ──▶ LoaderState.on_train_begin ──▶ loader.load_state_dict()    before the
    first batch

``ignore_data_skip=True`` tells Trainer not to skip; it then believes that the resumed epoch has all its
steps, so ``TrainerMixin._run_epoch`` tells it how many are left.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

from transformers import Trainer

from .. import ConfigError, Dataset, Loader, Pipeline
from .._agreement import of_all_ranks
from .accelerate import coordinates
from .loaders import EvalLoader, LoaderState, TrainerLoader

if TYPE_CHECKING:
    from transformers import Trainer as _Base  # what a mixin stands before
else:
    _Base = object


class TrainerMixin(_Base):  # type: ignore[misc]
    """Makes a Trainer take a :class:`feedstock.Pipeline`: ``class MyTrainer(TrainerMixin, SomeTrainer)``.

    ``train_dataset`` may be a pipeline or a :class:`feedstock.Loader`; ``eval_dataset``, ``evaluate`` and
    ``predict`` take pipelines (and dictionaries of them, as ever). Anything else is left to Trainer.
    ``args.ignore_data_skip`` is set: the place in the data comes from the checkpoint instead.

    Batches reach the model as ``prepare_batch`` makes them. Sizes are the pipeline's, so
    ``per_device_train_batch_size`` must agree with it, and samplers and ``dataloader_*`` arguments do not
    apply to it. Keep ``batch(global_batch_size=…)`` if the world size may change between a checkpoint and its
    resume.

    For evaluation use ``batch(n, tail="pad")``: each sample is seen, and predictions and metrics leave
    padding out. (The loss that a model computes itself is a mean over its batch, padding included, as with
    torch's DataLoader.)

    Raises:
        ConfigError: a pipeline together with ``data_collator`` or ``auto_find_batch_size``; a batch size that
            differs from Trainer's; a resume whose epoch cannot be told.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(super().__init__).bind(*args, **kwargs)
        given = {**bound.arguments, **bound.arguments.get("kwargs", {})}
        train, evaluation = given.get("train_dataset"), given.get("eval_dataset")
        sets = [train, *(evaluation.values() if isinstance(evaluation, dict) else [evaluation])]
        if any(_is_ours(data) for data in sets) and given.get("data_collator") is not None:
            raise ConfigError(
                "data_collator has nothing to do for a pipeline, whose batches are complete: leave it out, "
                "and use Pipeline.map, Pipeline.map_python or prepare_batch"
            )
        if not _is_ours(train):
            super().__init__(*args, **kwargs)
            return
        # Trainer asks for the length of what it is to sample from; ours are in the loader
        named = bound.arguments if "train_dataset" in bound.arguments else bound.arguments["kwargs"]
        named["train_dataset"] = None
        super().__init__(*bound.args, **bound.kwargs)
        self.train_dataset = train
        self._prepare_to_resume()

    def _prepare_to_resume(self) -> None:
        if self.args.gradient_accumulation_steps > 1 and not hasattr(super(), "_run_epoch"):
            raise ConfigError(
                "gradient_accumulation_steps over 1 needs transformers 5, whose Trainer has _run_epoch"
            )
        if self.args.auto_find_batch_size:
            raise ConfigError("auto_find_batch_size cannot change the pipeline's batch size: set it to False")
        self.args.ignore_data_skip = True
        states = [
            callback for callback in self.callback_handler.callbacks if isinstance(callback, LoaderState)
        ]
        for state in states:
            state.loader = None  # what a train() left that ended with an error says nothing about the next
        if not states:
            self.add_callback(LoaderState())

    def prepare_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch, from column to tensor or list with ``sample_ids`` and ``valid``, as the model's arguments.

        By default, and as Trainer does with data sets: what ``forward`` has no argument for is left out
        (unless ``args.remove_unused_columns`` is off), and ``label`` is called ``labels`` where ``forward``
        calls it so. Override it for more.
        """
        self._set_signature_columns_if_needed()
        taken = self._signature_columns or []
        if "label" in batch and "labels" in taken and "labels" not in batch:
            batch = {("labels" if name == "label" else name): value for name, value in batch.items()}
        if not self.args.remove_unused_columns:
            return batch
        return {name: value for name, value in batch.items() if name in taken}

    def get_train_dataloader(self) -> Any:
        """This process's loader, new for each ``train()`` if a pipeline was given."""
        if not _is_ours(self.train_dataset):
            return super().get_train_dataloader()
        self._prepare_to_resume()
        loader, dataset = self._loader(self.train_dataset, restart=False)
        if (
            loader.global_batch_size is not None
        ):  # where a total bounds batches, Trainer's number is of no use
            self._check_batch_size(loader, self._train_batch_size, "per_device_train_batch_size")
        return TrainerLoader(loader, self.prepare_batch, dataset)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """As Trainer's; for a pipeline, a loader that begins anew each time."""
        data = eval_dataset if eval_dataset is not None else self.eval_dataset
        if isinstance(eval_dataset, str):
            data = self.eval_dataset[eval_dataset]
        return self._eval_loader(data) if _is_ours(data) else super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """As :meth:`get_eval_dataloader`."""
        if not _is_ours(test_dataset):
            return super().get_test_dataloader(test_dataset)
        return self._eval_loader(test_dataset)

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """As Trainer's; it gathers the valid rows only."""
        if isinstance(dataloader, EvalLoader):
            self.gather_function = dataloader.gather  # Trainer sets its own again when it is done
        return super().evaluation_loop(dataloader, *args, **kwargs)

    def _eval_loader(self, data: Any) -> EvalLoader:
        if isinstance(data, Loader):
            raise ConfigError(
                "evaluation takes a pipeline, which it reads from the start each time: give that"
            )
        loader, _ = self._loader(data, restart=True)
        self._check_batch_size(loader, self.args.eval_batch_size, "per_device_eval_batch_size")
        return EvalLoader(loader, self.prepare_batch, data.dataset, self.accelerator)

    def _loader(self, data: Any, *, restart: bool) -> tuple[Loader, Dataset | None]:
        # Trainer takes all batches of an update before the first is trained on, while it still holds those of
        # the update before; beside them one is to be ready and one being written
        slots = 2 * self.args.gradient_accumulation_steps + 2
        if isinstance(data, Loader):
            if data.pipeline._slots < slots:
                raise ConfigError(
                    f"Trainer holds up to {slots - 2} batches at once with gradient_accumulation_steps="
                    f"{self.args.gradient_accumulation_steps}, and the loader has {data.pipeline._slots} "
                    f"slots: make it of pipeline.options(slots={slots}), or give the pipeline"
                )
            return data, None
        rank, world_size = coordinates(self.accelerator)
        pipeline = data.options(slots=max(slots, data._slots))
        made = pipeline.loader(rank, world_size, output="torch", restart=restart)
        made._agreement = of_all_ranks()
        return made, data.dataset

    def _check_batch_size(self, loader: Loader, expected: int, argument: str) -> None:
        # by all ranks' rows, so that all ranks come to the same result
        if loader.global_batch_size != expected * loader.world_size:
            raise ConfigError(
                f"the pipeline gives {loader.world_size} processes {loader.global_batch_size} rows a step, but "
                f"{argument} makes it {expected} for each, which Trainer reports and scales by: make them equal"
            )

    def _run_epoch(self, **kwargs: Any) -> Any:
        """One epoch. The first after a resume has fewer steps: Trainer must know, or it takes the end of the
        data for an accumulation that goes on, and the last gradients are not applied."""
        loader = kwargs["train_dataloader"]
        if isinstance(loader, TrainerLoader) and kwargs["epoch"] == kwargs["epochs_trained"]:
            loader.set_epoch(kwargs["epoch"])
            left = loader.loader.steps_left
            if left < kwargs["steps_in_epoch"]:
                updates = math.ceil(left / self.args.gradient_accumulation_steps)
                kwargs |= {"steps_in_epoch": left, "num_update_steps_per_epoch": updates}
        return super()._run_epoch(**kwargs)


class FeedstockTrainer(TrainerMixin, Trainer):  # type: ignore[misc]
    """``transformers.Trainer`` that takes pipelines. See :class:`TrainerMixin`."""


def _is_ours(data: object) -> bool:
    if isinstance(data, Dataset):
        raise ConfigError("a Dataset has no batches: give dataset.batch(…)")
    return isinstance(data, Pipeline | Loader)
