"""``transformers.Trainer`` with feedstock's loader.

To resume in the middle of an epoch, Trainer reads and drops the batches before it (``skip_first_batches``, for torch's
DataLoader only). Here the position is part of the checkpoint:

    save      trainer_state.json ◀── LoaderState.state() ◀── loader.state_dict()              after an optimizer step
    resume    trainer_state.json ──▶ LoaderState.on_train_begin ──▶ loader.load_state_dict()  before the first batch

With ``ignore_data_skip=True``, Trainer does not skip batches, and assumes that the resumed epoch has all its steps.
``TrainerMixin._run_epoch`` corrects that number.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers import Trainer

from .. import ConfigError, Dataset, Loader, Pipeline
from .._agreement import of_all_ranks
from .._options import DEFAULTS, LoaderOptions, check_names
from .._setup import for_trainer
from .accelerate import coordinates
from .loaders import EvalLoader, LoaderState, TrainerLoader

if TYPE_CHECKING:
    from transformers import Trainer as _Base  # the class that follows a mixin
else:
    _Base = object


class TrainerMixin(_Base):  # type: ignore[misc]
    """Makes a Trainer accept a :class:`feedstock.Pipeline`: ``class MyTrainer(TrainerMixin, SomeTrainer)``.

    ``train_dataset`` may be a pipeline or a :class:`feedstock.Loader`. ``eval_dataset``, ``evaluate`` and ``predict``
    accept pipelines, and dicts of them. Trainer handles everything else. ``args.ignore_data_skip`` is set, because the
    checkpoint has the position in the data.

    ``prepare_batch`` converts batches to the model's arguments. The pipeline sets the batch size:
    ``per_device_train_batch_size`` must agree with it, and samplers and ``dataloader_*`` arguments do not apply. Use
    ``batch(global_batch_size=…)`` if the world size may change between a checkpoint and its resume. With
    ``auto_find_batch_size``, the pipeline sets the first batch size that is tried.

    Batches are on ``args.device`` if that is a GPU, copied from page-locked memory while the model computes. Training
    loaders free their memory when ``train()`` ends or tries another batch size; those of evaluation when a loop ends.

    For evaluation use ``batch(n, tail="pad")``: each sample is evaluated, and predictions and metrics leave padding
    out. (A loss that the model computes is a mean over its batch, padding included, as with torch's DataLoader.)

    Args:
        *args: As for Trainer.
        loader_options: :class:`feedstock.LoaderOptions` of all loaders, such as ``{"workers": "ray"}``. The default of
            ``device`` is ``"auto"``. Trainer sets ``output`` and ``restart``, and holds several batches at a time, so
            ``static`` is not possible.
        **kwargs: As for Trainer.

    Raises:
        ConfigError: A pipeline together with ``data_collator``; a :class:`feedstock.Loader` together with
            ``auto_find_batch_size``; a batch size that differs from Trainer's; a resume whose epoch is ambiguous; an
            option of ``loader_options`` that Trainer sets.
        TypeError: An option of ``loader_options`` is unknown.
    """

    def __init__(self, *args: Any, loader_options: LoaderOptions | None = None, **kwargs: Any) -> None:
        check_names("loader_options", loader_options or {})
        self._loader_options: LoaderOptions = {**(loader_options or {})}
        if fixed := [name for name in ("output", "restart", "static") if name in self._loader_options]:
            raise ConfigError(f"loader_options must not have {', '.join(fixed)}, which Trainer decides")
        bound = inspect.signature(super().__init__).bind(*args, **kwargs)
        given = {**bound.arguments, **bound.arguments.get("kwargs", {})}
        train, evaluation = given.get("train_dataset"), given.get("eval_dataset")
        sets = [train, *(evaluation.values() if isinstance(evaluation, dict) else [evaluation])]
        if any(_is_ours(data) for data in sets) and given.get("data_collator") is not None:
            raise ConfigError(
                "data_collator does not apply to a pipeline, whose batches are complete; leave it out, and use "
                "Pipeline.map, Pipeline.map_python or prepare_batch"
            )
        if not _is_ours(train):
            super().__init__(*args, **kwargs)
            return
        # Trainer requests the length of a data set that it samples from; ours is in the loader.
        named = bound.arguments if "train_dataset" in bound.arguments else bound.arguments["kwargs"]
        named["train_dataset"] = None
        super().__init__(*bound.args, **bound.kwargs)
        self.train_dataset = train
        self._prepare_to_resume()

    def _prepare_to_resume(self) -> None:
        if self.args.gradient_accumulation_steps > 1 and not hasattr(super(), "_run_epoch"):
            raise ConfigError(
                "gradient_accumulation_steps > 1 needs transformers 5, whose Trainer has _run_epoch"
            )
        if self.args.auto_find_batch_size and isinstance(self.train_dataset, Loader):
            raise ConfigError(
                "auto_find_batch_size starts over with other batches after an error, and a Loader would continue where "
                "the error was; give Trainer the pipeline"
            )
        self.args.ignore_data_skip = True
        states = [
            callback for callback in self.callback_handler.callbacks if isinstance(callback, LoaderState)
        ]
        for state in states:
            state.release()  # the loader of a train() that ended with an error
        if not states:
            self.add_callback(LoaderState())

    def prepare_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Converts a batch to the model's arguments. Override it for other models.

        By default, and as Trainer does with data sets: columns without an argument of ``forward`` are left out, unless
        ``args.remove_unused_columns`` is off. ``label`` becomes ``labels`` if ``forward`` has that argument.

        Args:
            batch: From column to tensor or list, with ``sample_ids`` and ``valid``.
        """
        self._set_signature_columns_if_needed()
        taken = self._signature_columns or []
        if "label" in batch and "labels" in taken and "labels" not in batch:
            batch = {("labels" if name == "label" else name): value for name, value in batch.items()}
        if not self.args.remove_unused_columns:
            return batch
        return {name: value for name, value in batch.items() if name in taken}

    def get_train_dataloader(self) -> Any:
        """Returns this process's loader; a new one for each ``train()`` if a pipeline was given."""
        if not _is_ours(self.train_dataset):
            return super().get_train_dataloader()
        self._prepare_to_resume()
        loader, dataset = self._loader(self.train_dataset, restart=False)
        if loader.global_batch_size is not None:  # no total bounds the batches
            searches = self.args.auto_find_batch_size
            expected = self.args.train_batch_size if searches else self._train_batch_size
            self._check_batch_size(loader, expected, "per_device_train_batch_size")
            if searches and expected != self._train_batch_size:  # after an error, or as the checkpoint has it
                loader.reconfigure(global_batch_size=self._train_batch_size * loader.world_size)
        elif self.args.auto_find_batch_size:
            raise ConfigError(
                "auto_find_batch_size counts rows, and a total bounds the pipeline's batches; use batch(batch_size) or "
                "set it to False"
            )
        return TrainerLoader(loader, self.prepare_batch, dataset)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Returns Trainer's loader; for a pipeline, one that starts an epoch at each iteration."""
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
        """Runs Trainer's loop, with valid rows only."""
        if isinstance(dataloader, EvalLoader):
            # Trainer restores its function afterwards.
            self.gather_function: Callable[[Any], Any] = dataloader.gather
        return super().evaluation_loop(dataloader, *args, **kwargs)

    def _eval_loader(self, data: Any) -> EvalLoader:
        if isinstance(data, Loader):
            raise ConfigError(
                "evaluation needs a pipeline, which it reads from the start each time; got a Loader"
            )
        loader, _ = self._loader(data, restart=True)
        self._check_batch_size(loader, self.args.eval_batch_size, "per_device_eval_batch_size")
        return EvalLoader(loader, self.prepare_batch, data.dataset, self.accelerator)

    def _loader(self, data: Any, *, restart: bool) -> tuple[Loader, Dataset | None]:
        # Trainer takes all batches of an update before it trains on the first, while it still holds those of the
        # update before. In addition, one batch is ready and one is being written.
        held = 2 * self.args.gradient_accumulation_steps
        slots = held + 2
        if isinstance(data, Loader):
            found = data.pipeline._native.slots
            if found < slots:
                raise ConfigError(
                    f"the loader needs at least {slots} slots, because Trainer holds up to {held} batches at once with "
                    f"gradient_accumulation_steps={self.args.gradient_accumulation_steps}; got {found}. Make it of "
                    f"pipeline.options(slots={slots}), or give Trainer the pipeline"
                )
            return data, None
        rank, world_size = coordinates(self.accelerator)
        pipeline = data.options(slots=max(slots, data._native.slots))
        chosen: LoaderOptions = {"device": "auto", **self._loader_options}
        options: LoaderOptions = {**DEFAULTS, **chosen, "output": "torch", "restart": restart}
        options = for_trainer(options, self.args.device, has_functions=bool(pipeline._functions))
        if options["device"] is not None:
            options["depth"] += held
        made = pipeline.loader(rank, world_size, **options)
        made._agreement = of_all_ranks()
        return made, data.dataset

    def _check_batch_size(self, loader: Loader, expected: int, argument: str) -> None:
        # By the rows of all ranks, so that all ranks get the same result.
        if loader.global_batch_size != expected * loader.world_size:
            raise ConfigError(
                f"the pipeline has {loader.global_batch_size} rows a step for {loader.world_size} processes, but "
                f"{argument} is {expected} for each process, which Trainer reports and scales by; make them equal"
            )

    def _run_epoch(self, **kwargs: Any) -> Any:
        """Runs one epoch.

        The first epoch after a resume has fewer steps. Without that number, Trainer would take the end of the data for
        an unfinished accumulation and not apply the last gradients.
        """
        loader = kwargs["train_dataloader"]
        if isinstance(loader, TrainerLoader) and kwargs["epoch"] == kwargs["epochs_trained"]:
            loader.set_epoch(kwargs["epoch"])
            left = loader.loader.steps_left
            if left < kwargs["steps_in_epoch"]:
                updates = math.ceil(left / self.args.gradient_accumulation_steps)
                kwargs |= {"steps_in_epoch": left, "num_update_steps_per_epoch": updates}
        return super()._run_epoch(**kwargs)


class FeedstockTrainer(TrainerMixin, Trainer):  # type: ignore[misc]
    """A ``transformers.Trainer`` that accepts pipelines. See :class:`TrainerMixin`."""


def _is_ours(data: object) -> bool:
    if isinstance(data, Dataset):
        raise ConfigError("a Dataset has no batches; give a pipeline: dataset.batch(…)")
    return isinstance(data, Pipeline | Loader)
