"""AdaptDL: a data loader with AdaptDL's interface, whose checkpoints continue at the next sample.

```text
 AdaptDL: which replicas, what batch size, when to stop ──▶ AdaptDLLoader ──▶ Loader.reconfigure, state_dict
          its checkpoint directory                      ◀── the cursor, after the last optimizer step
```
AdaptDL's loader gives each replica every K-th index of a shuffled list, and repeats a sample if K does not divide the
rest. Here feedstock sets the order: replicas may join and leave in the middle of an epoch, and every sample is still
delivered once.

AdaptDL 0.2.11 is its last release. It predates two changes in other packages, which this module reports early:

- torch ≥ 2.6 rejects its checkpoints, which contain numpy arrays, unless TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 is set.
- With numpy ≥ 1.24 it can choose batch sizes only with gradient_accumulation=True.

`feedstock.adaptive` does the same without AdaptDL, with `torch.distributed` only.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from feedstock import ConfigError
from feedstock._options import LoaderOptions, documents_loader_options, takes_loader_options

try:
    import adaptdl.checkpoint
    import adaptdl.env
    import adaptdl.torch.data
    from adaptdl.torch._metrics import get_progress
    from adaptdl.torch.epoch import current_epoch
except ImportError as _error:
    raise ImportError(
        f"feedstock.adaptdl needs AdaptDL and what it imports: pip install adaptdl 'setuptools<81' ({_error})"
    ) from _error

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from feedstock import Loader, Pipeline

    class _Base:  # AdaptDL has no types
        def __init__(self, batch_size: int) -> None: ...
        def autoscale_batch_size(self, *args: Any, **keywords: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
else:
    _Base = adaptdl.torch.data.AdaptiveDataLoaderMixin

__all__ = ["AdaptDLLoader"]

SYNC_STEPS = 100  # optimizer steps between requests for AdaptDL's batch size, which AdaptDL refits every 30 s


@documents_loader_options
class AdaptDLLoader(_Base):
    """Batches of this replica, for use inside `adaptdl.torch.remaining_epochs_until`.

    ```python
    adaptdl.torch.init_process_group("gloo")
    loader = AdaptDLLoader(pipeline, batch_size=256)
    loader.autoscale_batch_size(4096, local_bsz_bounds=(32, 256), gradient_accumulation=True)
    model = adaptdl.torch.AdaptiveDataParallel(model, optimizer)
    for epoch in adaptdl.torch.remaining_epochs_until(90):
        for batch in loader:
            ...
    ```

    AdaptDL's checkpoint contains the cursor of the last optimizer step. Micro-batches whose gradients a restart
    discarded are delivered again.

    Batches are in host memory unless `device` names a GPU. When a loop over an evaluation loader ends, the loader frees
    its memory, if `autoscale_batch_size` was called on the training loader, so that AdaptDL knows which one trains.

    Args:
        pipeline: The pipeline; the `tail` of its `batch(…)` applies.
        batch_size: Rows of a step over all replicas, before autoscaling. Each replica takes the same number, rounded
            up.
        epochs: `"data"` (default): a loop over the loader is one pass over the data, for any batch size.
            `"progress"`: AdaptDL's rule, if the batch size is autoscaled: a loop ends when it has made the progress of
            one pass at `batch_size`. The next loop continues in the order, so that passes stay complete.
        sync_steps: Optimizer steps between requests for AdaptDL's batch size; default 100.
        **options: See `LoaderOptions`; the default of `output` is `"torch"`.

    Raises:
        ConfigError: An argument is not valid.
    """

    @takes_loader_options(output="torch", without=("restart",))
    def __init__(
        self,
        pipeline: Pipeline,
        batch_size: int,
        *,
        epochs: Literal["data", "progress"] = "data",
        sync_steps: int = SYNC_STEPS,
        **options: Unpack[LoaderOptions],
    ) -> None:
        _check_weights_only()
        if epochs not in ("data", "progress"):
            raise ConfigError(f"epochs must be 'data' or 'progress'; got {epochs!r}")
        if sync_steps < 1:
            raise ConfigError(f"sync_steps must be >= 1 (optimizer steps); got {sync_steps}")
        replicas = adaptdl.env.num_replicas()
        if batch_size < 1:
            raise ConfigError(
                f"batch_size must be >= 1 (rows over all {replicas} replicas); got {batch_size}"
            )
        super().__init__(batch_size)
        self._by_progress = epochs == "progress"
        self._sync_steps = sync_steps
        self._loader = pipeline.loader(adaptdl.env.replica_rank(), replicas, **options)
        self._loader.reconfigure(global_batch_size=-(-batch_size // replicas) * replicas)
        self._samples = len(pipeline.dataset)
        self._checkpoint = _LoaderState(self._loader)
        adaptdl.checkpoint.load_state(self._checkpoint)

    @property
    def loader(self) -> Loader:
        """The inner loader, for `stats()`, `ledger()` and so on. Do not iterate it while you iterate this one."""
        return self._loader

    def __len__(self) -> int:
        """Returns the batches of a whole pass over the data at the current batch size."""
        return len(self._loader)

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int | None, int | None] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Lets AdaptDL choose the batch size.

        Args:
            max_batch_size: The most rows over all replicas.
            local_bsz_bounds: The fewest and most rows of a replica; default: no bounds.
            gradient_accumulation: Whether AdaptDL may accumulate gradients; default `False`.

        Raises:
            ConfigError: `gradient_accumulation` is false, and numpy lacks a name that AdaptDL then uses.
        """
        if not gradient_accumulation and not hasattr(np, "int"):
            raise ConfigError(
                f"AdaptDL 0.2 cannot choose a batch size without gradient accumulation with numpy {np.__version__} "
                "(it uses numpy.int, which 1.24 removed); set gradient_accumulation=True, or use feedstock.adaptive"
            )
        super().autoscale_batch_size(max_batch_size, local_bsz_bounds, gradient_accumulation)

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of one loop, or of its rest after a restart.

        Replicas stop for a checkpoint between two batches.
        """
        elastic = self._elastic
        with elastic.context(), self._released():
            if elastic.skipdone():
                return
            epoch = current_epoch()
            by_progress = self._by_progress and epoch is not None and elastic.max_batch_size is not None
            if by_progress:
                while not self._is_done(epoch):
                    yield from self._pass(self._loader.epoch, epoch)
            elif epoch is None:
                yield from self._pass(self._loader.epoch, None)
            elif not self._checkpoint.take_restored(epoch):
                yield from self._pass(epoch, None)

    @contextlib.contextmanager
    def _released(self) -> Iterator[None]:
        """Frees the memory of a loader that is iterated in the block, if another one is AdaptDL's training loader."""
        try:
            yield
        finally:
            if self._elastic._training not in (None, self._elastic):
                self._loader._release()

    def _pass(self, pass_: int, epoch: int | None) -> Iterator[Any]:
        """Yields the rest of a pass over the data; with `epoch`, up to that epoch's progress."""
        loader, elastic = self._loader, self._elastic
        loader.set_epoch(pass_)
        self._sync(rows_left=None)
        batches = iter(loader)
        steps = self._sync_steps
        first = True
        while loader.epoch == pass_ and (left := loader.steps_left) > 0:
            if steps <= 0:
                steps = self._sync_steps
                if self._sync(rows_left=left * _rows(loader)):
                    batches = iter(loader)
                    continue
            for _ in self._step_parts(left):
                # A restart happens here, before the batch is taken: AdaptDL saves and exits in profile().
                with elastic.profile(self.training and not first):
                    batch = next(batches)
                    yield batch
                    del batch  # or it would keep its slot while this waits for the next
                    if elastic.is_optim_step():
                        self._checkpoint.commit()
                        elastic.current_index = self._checkpoint.position
                first = False
            steps -= 1
            if epoch is not None and self._is_done(epoch):
                return

    def _step_parts(self, left: int) -> Iterator[int]:
        """Yields the micro-batches of one optimizer step.

        They are fewer at the end of a pass, so that none waits for the next pass.
        """
        state = self._elastic._state
        decided = state.accumulation_steps
        state.accumulation_steps = min(decided, left - 1)
        try:
            yield from range(state.accumulation_steps + 1)
        finally:
            state.accumulation_steps = decided

    def _sync(self, rows_left: int | None) -> bool:
        """Applies AdaptDL's batch size; returns whether it changed. Collective.

        Args:
            rows_left: Rows left in the pass. A larger batch size is not applied yet, because it would end the pass and
                lose its rest.
        """
        elastic = self._elastic
        before = elastic._state.current_local_bsz, elastic._state.accumulation_steps
        rows = elastic._sync_local_bsz() * self._loader.world_size
        if rows_left is not None and rows > rows_left:
            elastic._state.current_local_bsz, elastic._state.accumulation_steps = before
            return False
        if rows == _rows(self._loader):
            return False
        self._loader.reconfigure(global_batch_size=rows)
        return True

    def _is_done(self, epoch: int | None) -> bool:
        """Returns whether AdaptDL's progress has reached the end of an epoch: its steps at the initial batch size."""
        assert epoch is not None, "AdaptDL makes progress within its epochs"
        return bool(get_progress() >= self._samples * (epoch + 1) / self._elastic.batch_size)


class _LoaderState(adaptdl.checkpoint.State):  # type: ignore[misc]
    """The cursor in AdaptDL's checkpoint."""

    # AdaptDL identifies a state by its name, and programs make their loaders in the same order after a restart.
    _made: ClassVar[collections.Counter[int | None]] = collections.Counter()

    def __init__(self, loader: Loader) -> None:
        epoch = current_epoch()
        super().__init__(f"feedstock-loader-epoch{epoch}-{self._made[epoch]}")
        self._made[epoch] += 1
        self._loader = loader
        self._restored_epoch: int | None = None
        self.commit()

    def commit(self) -> None:
        """Remembers the position: the model contains all batches up to here."""
        self._committed = self._loader.state_dict()

    @property
    def position(self) -> int:
        """Samples of the epoch that the model contains, of all replicas."""
        return int(self._committed["position"])

    def save(self, fileobj: IO[bytes]) -> None:
        """Writes the state. AdaptDL calls it in the replica of rank 0."""
        fileobj.write(json.dumps(self._committed).encode())

    def load(self, fileobj: IO[bytes]) -> None:
        """Reads the state. AdaptDL calls it in every replica at its start."""
        saved = json.loads(fileobj.read())
        self._loader.load_state_dict(saved)
        self._restored_epoch = int(saved["epoch"])
        self.commit()

    def take_restored(self, epoch: int) -> bool:
        """Returns, once after a restart, whether the rest of this epoch is shorter than one batch of these replicas."""
        restored, self._restored_epoch = self._restored_epoch, None
        return restored == epoch and self._loader.epoch > epoch


def _rows(loader: Loader) -> int:
    rows = loader.global_batch_size
    assert rows is not None, "set when the loader was made"
    return rows


def _check_weights_only() -> None:
    """Checks that torch will load AdaptDL's checkpoints, which are pickles with numpy arrays.

    Raises:
        ConfigError: torch is 2.6 or later, and the environment does not allow them.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    set_ = os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0")
    if (
        adaptdl.env.checkpoint_path() is not None
        and version >= (2, 6)
        and set_.lower() not in ("1", "y", "yes", "true")
    ):
        raise ConfigError(
            f"torch {torch.__version__} will reject AdaptDL's checkpoints at the next restart; set "
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in the environment of every replica (this job wrote the files)"
        )
