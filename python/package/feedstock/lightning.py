"""Lightning: a `LightningDataModule` made of pipelines.

    FeedstockDataModule(train=pipeline, val=pipeline)
        train_dataloader ─▶ a Loader that continues from epoch to epoch, from fit to fit, and from checkpoints
        val_dataloader   ─▶ a Loader that starts an epoch whenever Lightning iterates it

A `Loader` that is given to `Trainer.fit` directly also trains on every sample once an epoch. The data module adds what
Lightning 2.6 lacks:

- Rank and world size of the strategy, also for model-parallel ranks, which share their data.
- The loader's state in checkpoints at an epoch's end, and with `estimated_stepping_batches`. Lightning saves it there,
  but does not restore it.
- Resuming with another world size or batch size. Lightning would count the epoch's remaining steps in old batches.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningDataModule
else:
    try:
        from lightning.pytorch import Callback, LightningDataModule
    except ModuleNotFoundError:  # the same under its older name
        from pytorch_lightning import Callback, LightningDataModule

from feedstock._agreement import of_all_ranks
from feedstock._check import whole_or_none
from feedstock._options import LoaderOptions, documents_loader_options, takes_loader_options
from feedstock._preemption import PreemptionNotice
from feedstock._setup import for_trainer
from feedstock.errors import ConfigError
from feedstock.torch import Coordinates

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from typing_extensions import Unpack

    from feedstock import Loader, Pipeline

__all__ = ["FeedstockDataModule", "RayReport"]


@documents_loader_options
class FeedstockDataModule(LightningDataModule):  # type: ignore[misc]  # Lightning is not checked
    """Pipelines as Lightning's training, validation, test and prediction data.

    Each rank makes its loaders when Lightning requests them, with the strategy's data-parallel rank and world size.
    The default of `output` is `"torch"`: batches are plain dicts. The default of `device` is `"auto"`: if the strategy
    trains on a GPU, the loaders copy the batches to it from page-locked memory while the model computes, and Lightning
    finds them there.

    The training loader frees its memory when `Trainer.fit` ends, and a loader of another stage when its loop ends.

    The training loader keeps its position. A second `Trainer.fit` of the same trainer continues. A new trainer begins
    at epoch 0, or where the checkpoint of `ckpt_path` was saved, in the middle of an epoch or at its end. World size
    and batch size may differ. Checkpoints hold the state under this class's name; a subclass that is renamed between
    saving and loading loses it, as with any data module.

    Args:
        train: The training data, usually shuffled. For several data sets use `Dataset.concat` or `Dataset.mix`.
        val: One pipeline, or one for each `dataloader_idx`. For metrics that count every sample once, use
            `batch(n, tail="pad")` and leave out rows where `valid` is False.
        test: As `val`.
        predict: As `val`.
        **options: See `LoaderOptions`. They apply to all loaders. With `output="batch"`, batches are in host memory
            unless `device` names one, and the module's `transfer_batch_to_device` must handle `feedstock.Batch`.
    """

    @takes_loader_options(output="torch", device="auto", without=("restart",))
    def __init__(
        self,
        train: Pipeline | None = None,
        val: Pipeline | Sequence[Pipeline] | None = None,
        test: Pipeline | Sequence[Pipeline] | None = None,
        predict: Pipeline | Sequence[Pipeline] | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        super().__init__()
        self.pipelines: dict[str, Pipeline | Sequence[Pipeline] | None] = {
            "train": train,
            "val": val,
            "test": test,
            "predict": predict,
        }
        self.output = options["output"]
        self._options = options
        self.train_loader: Loader | None = None
        """The loader of the latest `Trainer.fit` on this rank, for `ledger()`, `stats()` and `skip_report()`."""
        self._trainer_of_loader: Any = None
        self._evaluations: dict[str, list[Loader]] = {}  # by stage
        self._restored: dict[str, Any] | None = None

    def train_dataloader(self) -> Loader:
        """Returns the training loader: the same one while the trainer is the same."""
        pipeline = self.pipelines["train"]
        if pipeline is None or isinstance(pipeline, Sequence):
            raise ConfigError(
                "train must be one pipeline, for Trainer.fit: FeedstockDataModule(train=pipeline); got "
                f"{type(pipeline).__name__}"
            )
        if self.train_loader is None or self._trainer_of_loader is not self.trainer:
            self.train_loader = self._loader(pipeline, restart=False)
            self._trainer_of_loader = self.trainer
            if self.trainer is not None:
                self.trainer.callbacks.append(_AlignProgress(self))
        if self._restored is not None:
            self.train_loader.load_state_dict(self._restored)
            self._restored = None
        return self.train_loader

    def val_dataloader(self) -> list[Loader]:
        """Returns loaders that start an epoch at every `iter()`."""
        return self._evaluation_loaders("val")

    def test_dataloader(self) -> list[Loader]:
        """As `val_dataloader`."""
        return self._evaluation_loaders("test")

    def predict_dataloader(self) -> list[Loader]:
        """As `val_dataloader`."""
        return self._evaluation_loaders("predict")

    def state_dict(self) -> dict[str, Any]:
        """Returns the training loader's state: a few hundred bytes, equal on all ranks."""
        if self.train_loader is not None:
            return {"train": self.train_loader.state_dict()}
        return {} if self._restored is None else {"train": self._restored}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues where `state_dict` was saved. Does nothing for `validate`, `test` and `predict` of a checkpoint."""
        if "train" not in state_dict or (self.trainer is not None and self.trainer.state.fn != "fit"):
            return
        self._restored = state_dict["train"]
        if self.train_loader is not None and self._trainer_of_loader is self.trainer:
            self.train_dataloader()  # Lightning has the loader and will not request it again

    def teardown(self, stage: str) -> None:
        """Frees the memory of the training loader after `fit`. It keeps its position and its ledger."""
        if stage == "fit" and self.train_loader is not None:
            self.train_loader._release()

    def _evaluation_loaders(self, stage: str) -> list[Loader]:
        pipelines = self.pipelines[stage]
        if pipelines is None:
            return []
        pipelines = pipelines if isinstance(pipelines, Sequence) else [pipelines]
        loaders = [self._loader(pipeline, restart=True) for pipeline in pipelines]
        self._evaluations[stage] = loaders
        if self.trainer is not None and not any(_frees(one, self) for one in self.trainer.callbacks):
            self.trainer.callbacks.append(_FreeMemory(self))
        return loaders

    def _loader(self, pipeline: Pipeline, *, restart: bool) -> Loader:
        rank, world_size = self._coordinates()
        device = None if self.trainer is None else self.trainer.strategy.root_device
        options: LoaderOptions = {**self._options, "restart": restart}
        options = for_trainer(options, device, has_functions=bool(pipeline._functions))
        loader = pipeline.loader(rank, world_size, **options)
        loader._agreement = of_all_ranks()
        return loader

    def _coordinates(self) -> Coordinates:
        """Returns what the strategy gives a `DistributedSampler`; with model parallelism, the data-parallel group's."""
        places = None if self.trainer is None else self.trainer.distributed_sampler_kwargs
        return Coordinates(0, 1) if places is None else Coordinates(places["rank"], places["num_replicas"])


class RayReport(Callback):  # type: ignore[misc]
    """Reports checkpoints to Ray Train in the middle of epochs, for `Trainer(callbacks=[…])` in its workers.

    One is reported every `every_steps` optimizer steps, and one before the node of a rank leaves the cluster, if Ray
    announces that: see `feedstock.ray.PreemptionNotice`. Ray's `RayTrainReportCallback` reports at the end of each
    epoch. As with it, the checkpoint is the file `checkpoint.ckpt`, and `trainer.callback_metrics` are reported.

    Args:
        every_steps: Optimizer steps between two checkpoints; default: none but those before a node leaves.
        notice_steps: Batches between two questions whether a node leaves, for which ranks wait for each other; default
            10.
    """

    #: The name in a checkpoint's folder, the same as that of Ray's callback.
    CHECKPOINT_NAME = "checkpoint.ckpt"

    def __init__(self, every_steps: int | None = None, *, notice_steps: int = 10) -> None:
        super().__init__()
        self._every = whole_or_none("every_steps", every_steps, 1)
        self._notice = PreemptionNotice(notice_steps)
        self._due = False
        self._step = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Reports a checkpoint if one is due and the batch ended an optimizer step."""
        self._due = self._notice.due() or self._due
        if trainer.global_step == self._step:
            return  # in the middle of an accumulation
        self._step = trainer.global_step
        if not self._due and (self._every is None or self._step % self._every):
            return
        self._due = False
        import ray.train

        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        with tempfile.TemporaryDirectory() as folder:
            trainer.save_checkpoint(os.path.join(folder, self.CHECKPOINT_NAME))  # collective
            mine = ray.train.Checkpoint.from_directory(folder) if os.listdir(folder) else None
            ray.train.report({**metrics, "step": self._step}, checkpoint=mine)


class _FreeMemory(Callback):  # type: ignore[misc]
    """Frees the memory of evaluation loaders when a loop over them ends.

    Lightning counts the batches. It does not ask for one after the last, and keeps the iterator until the next loop.
    """

    def __init__(self, data: FeedstockDataModule) -> None:
        self.data = data

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._free("val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._free("test")

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._free("predict")

    def _free(self, stage: str) -> None:
        for loader in self.data._evaluations.get(stage, ()):
            loader._release()


def _frees(callback: Callback, data: FeedstockDataModule) -> bool:
    return isinstance(callback, _FreeMemory) and callback.data is data


class _AlignProgress(Callback):  # type: ignore[misc]
    """Makes Lightning's count of an epoch's steps agree with the loader's.

    After resuming in the middle of an epoch, Lightning counts batches of the size at which the checkpoint was saved,
    and ends the epoch when the count reaches `len(loader)`: too early or too late if the global batch size has changed.
    Without a length, it requests one batch ahead to see the end; that batch would count as delivered.
    """

    def __init__(self, data: FeedstockDataModule) -> None:
        self.data = data

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader, fit = self.data.train_loader, trainer.fit_loop
        whole_epochs = isinstance(trainer.limit_train_batches, float) and trainer.limit_train_batches == 1.0
        if loader is None or not whole_epochs or trainer.overfit_batches:
            return
        try:
            steps = len(loader)
        except TypeError as endless:
            raise ConfigError(
                "a mix that never stops has no length, so Lightning would request a batch ahead of the one it trains "
                "on, and a resumed run would leave that batch out; give Trainer(limit_train_batches=n), the number "
                "of steps of an epoch"
            ) from endless
        if not fit.restarting:
            return
        progress = fit.epoch_loop.batch_progress
        done = steps - loader.steps_left
        if loader.position == 0 and progress.is_last_batch:
            done = steps  # saved after an epoch's last batch: the loader's state is the next epoch's start
        elif loader.position == 0 and progress.current.ready > 0:
            # The rest of the epoch is less than one batch of the new size: the loader has gone on to the next epoch.
            fit.epoch_progress.increment_processed()
            fit.epoch_progress.increment_completed()
        shift = done - progress.current.ready
        for count in ("ready", "started", "processed", "completed"):
            setattr(progress.current, count, getattr(progress.current, count) + shift)
