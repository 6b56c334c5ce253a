"""Feedstock under Lightning: a `LightningDataModule` made of pipelines.

    FeedstockDataModule(train=pipeline, val=pipeline)
        train_dataloader ─▶ a Loader that goes on from epoch to epoch, from fit to fit, and from checkpoints
        val_dataloader   ─▶ a Loader that begins anew whenever Lightning iterates it

A `Loader` given straight to `Trainer.fit` trains every sample once an epoch, too. What the data module adds is what
Lightning leaves open (2.6): the rank and world size of the strategy, also where model-parallel ranks share their data;
the loader's state in checkpoints that were saved at an epoch's end, or where `estimated_stepping_batches` is used,
which Lightning saves but does not restore; and resuming with another world size or batch size, where Lightning would
count the epoch's remaining steps in old batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

try:
    from lightning.pytorch import Callback, LightningDataModule
except ModuleNotFoundError:  # the same under its older name
    from pytorch_lightning import Callback, LightningDataModule

from feedstock._agreement import of_all_ranks
from feedstock.errors import ConfigError
from feedstock.torch import Coordinates

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from feedstock import Loader, Pipeline

__all__ = ["FeedstockDataModule"]


class FeedstockDataModule(LightningDataModule):  # type: ignore[misc]  # Lightning is not checked
    """Pipelines as Lightning's training, validation, test and prediction data.

    Loaders are made on each rank when Lightning asks for them, with the strategy's data-parallel rank and world size.
    Batches are plain dicts, which Lightning moves to the device: column name to `torch.Tensor`, or to a `list` for
    strings, bytes and nested values, with `"sample_ids"` (int64 [rows]) and `"valid"` (bool [rows]) added.

    The training loader keeps its place: a second `Trainer.fit` of the same trainer goes on, a new trainer begins at
    epoch 0, or where the checkpoint of `ckpt_path` was taken, in the middle of an epoch or at its end. World size and
    batch size may have changed since. Checkpoints hold the state under this class's name; a subclass that is renamed
    between saving and loading loses it, as with any data module.

    Args:
        train: The training data, usually shuffled. Several data sets: `Dataset.concat` or `Dataset.mix`.
        val, test, predict: One pipeline, or several for as many `dataloader_idx`. Evaluation counts every sample once
            with `batch(tail="pad")` if the steps leave out rows where `valid` is False.
        output: As for `feedstock.torch.loader`. With `"batch"` the module's `transfer_batch_to_device` has to know
            `feedstock.Batch`.
    """

    def __init__(
        self,
        train: Pipeline | None = None,
        val: Pipeline | Sequence[Pipeline] | None = None,
        test: Pipeline | Sequence[Pipeline] | None = None,
        predict: Pipeline | Sequence[Pipeline] | None = None,
        *,
        output: Literal["batch", "numpy", "torch"] = "torch",
    ) -> None:
        super().__init__()
        self.pipelines = {"train": train, "val": val, "test": test, "predict": predict}
        self.output = output
        self.train_loader: Loader | None = None
        """The loader of the latest `Trainer.fit` on this rank, for its `ledger()`, `stats()` and `skip_report()`."""
        self._trainer_of_loader: Any = None
        self._restored: dict[str, Any] | None = None

    def train_dataloader(self) -> Loader:
        """The training loader: the same one for as long as the trainer is the same."""
        pipeline = self.pipelines["train"]
        if pipeline is None or isinstance(pipeline, Sequence):
            raise ConfigError("FeedstockDataModule needs train=, one pipeline, for Trainer.fit")
        if self.train_loader is None or self._trainer_of_loader is not self.trainer:
            rank, world_size = self._coordinates()
            self.train_loader = pipeline.loader(rank, world_size, output=self.output)
            self.train_loader._agreement = of_all_ranks()
            self._trainer_of_loader = self.trainer
            if self.trainer is not None:
                self.trainer.callbacks.append(_AlignProgress(self))
        if self._restored is not None:
            self.train_loader.load_state_dict(self._restored)
            self._restored = None
        return self.train_loader

    def val_dataloader(self) -> list[Loader]:
        """Loaders that begin at an epoch's start at every `iter()`: sanity checking draws from them first."""
        return self._evaluation_loaders("val")

    def test_dataloader(self) -> list[Loader]:
        """As `val_dataloader`."""
        return self._evaluation_loaders("test")

    def predict_dataloader(self) -> list[Loader]:
        """As `val_dataloader`."""
        return self._evaluation_loaders("predict")

    def state_dict(self) -> dict[str, Any]:
        """The training loader's state: a few hundred bytes, equal on all ranks."""
        if self.train_loader is not None:
            return {"train": self.train_loader.state_dict()}
        return {} if self._restored is None else {"train": self._restored}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken. Does nothing for `validate`, `test` and `predict` of a checkpoint."""
        if "train" not in state_dict or (self.trainer is not None and self.trainer.state.fn != "fit"):
            return
        self._restored = state_dict["train"]
        if self.train_loader is not None and self._trainer_of_loader is self.trainer:
            self.train_dataloader()  # Lightning has it already, and will not ask again

    def _evaluation_loaders(self, stage: str) -> list[Loader]:
        pipelines = self.pipelines[stage]
        if pipelines is None:
            return []
        pipelines = pipelines if isinstance(pipelines, Sequence) else [pipelines]
        rank, world_size = self._coordinates()
        loaders = [
            pipeline.loader(rank, world_size, output=self.output, restart=True) for pipeline in pipelines
        ]
        for loader in loaders:
            loader._agreement = of_all_ranks()
        return loaders

    def _coordinates(self) -> Coordinates:
        """What the strategy would tell a `DistributedSampler`: for model parallelism, the data-parallel group's."""
        places = None if self.trainer is None else self.trainer.distributed_sampler_kwargs
        return Coordinates(0, 1) if places is None else Coordinates(places["rank"], places["num_replicas"])


class _AlignProgress(Callback):  # type: ignore[misc]
    """Makes Lightning's count of an epoch's steps agree with the loader's.

    After resuming in the middle of an epoch, Lightning's is of batches as they were when the checkpoint was saved, and
    it ends the epoch when that count reaches `len(loader)`: at a wrong place if the global batch size has changed.
    Where there is no length, it looks a batch ahead to see the end; that batch would count as delivered.
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
                "a mix that never stops has no length, so Lightning would draw a batch ahead of the one it trains "
                "on, and a resumed run would leave that batch out; give Trainer(limit_train_batches=n), the number "
                "of steps that Lightning shall call an epoch"
            ) from endless
        if not fit.restarting:
            return
        progress = fit.epoch_loop.batch_progress
        done = steps - loader.steps_left
        if loader.position == 0 and progress.is_last_batch:
            done = steps  # saved behind an epoch's last batch: the loader's state is the next one's start
        elif loader.position == 0 and progress.current.ready > 0:
            # what was left of the epoch is less than one of today's batches: the loader has gone on to the next
            fit.epoch_progress.increment_processed()
            fit.epoch_progress.increment_completed()
        shift = done - progress.current.ready
        for count in ("ready", "started", "processed", "completed"):
            setattr(progress.current, count, getattr(progress.current, count) + shift)
