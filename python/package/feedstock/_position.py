"""Where a loader is in the order, and which samples are where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feedstock._check import whole

if TYPE_CHECKING:
    from feedstock import _feedstock


class SamplePlace(NamedTuple):
    """A row of a batch."""

    epoch: int
    step: int
    rank: int
    row: int


class Position:
    """The part of a loader that knows its position and its share of a step."""

    _native: _feedstock.Loader

    def _state(self) -> tuple[int, int, str]:
        raise NotImplementedError

    def __len__(self) -> int:
        """Returns the steps of the whole current epoch, the same on all ranks.

        Epochs have the same number of steps, unless a total bounds the batches.

        Raises:
            TypeError: The data set is a mix with ``stop="never"``, whose epoch does not end.
        """
        steps = self._native.steps_in(self.epoch)
        if steps is None:
            raise TypeError("a mix that never stops has no length")
        return steps

    @property
    def steps_left(self) -> int:
        """The number of steps from here to the end of the current epoch."""
        epoch, position, _ = self._state()
        steps = self._native.steps_after(epoch, position)
        if steps is None:
            raise TypeError("a mix that never stops has no length")
        return steps

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._state()[0]

    @property
    def position(self) -> int:
        """The global position of the next batch: the number of samples of the epoch that all ranks have delivered."""
        return self._state()[1]

    @property
    def rank(self) -> int:
        """This process's rank in the data-parallel group."""
        return self._native.share()[0]

    @property
    def world_size(self) -> int:
        """The number of ranks in the data-parallel group."""
        return self._native.share()[1]

    @property
    def global_batch_size(self) -> int | None:
        """Rows of a step over all ranks; None if a total bounds the batches."""
        return self._native.share()[2]

    @property
    def batch_size(self) -> int | None:
        """Rows of this rank's batches; None if a total bounds them."""
        rank, world_size, rows = self._native.share()
        return None if rows is None else rows // world_size + (rank < rows % world_size)

    def samples_in(self, step: int, epoch: int | None = None) -> list[np.ndarray[Any, np.dtype[np.uint64]]]:
        """Returns the sample ids of a step, without reading it.

        Args:
            step: The step, at least 0.
            epoch: Its epoch; default: the current one.

        Returns:
            One array for each rank: uint64 [rows].
        """
        of = self.epoch if epoch is None else whole("epoch", epoch)
        ranks = self._native.samples_in(of, whole("step", step))
        return [np.asarray(samples, dtype=np.uint64) for samples in ranks]

    def where(self, sample_id: int, epoch: int | None = None) -> list[SamplePlace]:
        """Returns where a sample is delivered, without reading anything. ``samples_in`` is the opposite.

        Rows that pad a last step are left out. If a total bounds the batches, the steps up to the sample are computed,
        which takes about 0.2 µs per sample.

        Args:
            sample_id: The sample's id, as in ``Batch.sample_ids`` and in the column ``sample_id`` of ``Dataset.head``.
            epoch: The epoch; default: the current one.

        Returns:
            Tuples (epoch, step, rank, row), by step. One; several if a mix repeats the sample in an epoch; none if a
            filter leaves it out, if it is in a last step that is dropped, and after the last epoch. Steps are those of
            the current batch size from the epoch's start on. Of a mix with ``stop="never"``, the place
            in the first pass over the sample's part.

        Raises:
            ConfigError: The data set has no such sample.

        Example:
            >>> loader = fs.Dataset(images).shuffle(seed=7).batch(2).loader(world_size=2)
            >>> epoch, step, rank, row = loader.where(5, epoch=3)[0]
            >>> int(loader.samples_in(step, epoch)[rank][row])
            5
        """
        of = self.epoch if epoch is None else whole("epoch", epoch)
        places = self._native.places_of(of, whole("sample_id", sample_id))
        return [SamplePlace(*place) for place in places]
