"""Which samples come when: the order of a pipeline, and its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from feedstock._check import batch_sizes, one_of, text, whole, whole_or_none
from feedstock._steps import R, Steps
from feedstock.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self


class Order(Steps[R]):
    """The steps of a pipeline that set its order and its batches."""

    def shuffle(
        self,
        seed: int = 0,
        *,
        window: int | None = None,
        lanes: int | None = None,
        full: bool = False,
        shuffle_bytes: int | None = None,
        piece: int | None = None,
    ) -> Self:
        """Shuffles every epoch anew, as a pure function of (data set, seed, epoch).

        What is permuted depends on how the data set is stored, so that the shuffle is as good as reads allow:

        - folders and manifests, and on local disks tars, Arrow IPC and Parquet with a page for each sample: every
          sample (a full shuffle);
        - these on object storage, except folders: pieces of about 256 KiB, then samples inside windows of 256 MiB;
        - Parquet with pages of a few samples, without a filter: whole pages, then samples inside windows of 256 MiB,
          or of 512 MiB if a page has more than 256 KiB;
        - other Parquet and compressed Arrow IPC: blocks, then samples inside windows of 512 MiB.

        With ``window``, it is blocks for all of them, unless ``piece`` is set. A loaded state keeps the order that it
        was saved with.

        Args:
            seed: At least 0; default 0. Also seeds the ops' random numbers, unless ``seed()`` sets another seed.
            window: Samples in a window, over all ranks; default: by ``shuffle_bytes``.
            shuffle_bytes: Encoded bytes of the samples in a window, over all ranks; default 256 MiB for pieces, 512 MiB
                for blocks and large pages. Larger windows mix better and take more memory.
            piece: Consecutive samples that stay together until they are shuffled inside a window, at least 1. Smaller
                pieces mix better and take more requests.
            lanes: Strands of the order that ranks divide among themselves; default: up to 64. For large jobs, set a
                multiple of the largest planned world size.
            full: ``True`` draws every sample independently, for storage with fast random reads; default ``False``.
        """
        windowed = {"window": window, "shuffle_bytes": shuffle_bytes, "piece": piece}
        given = [name for name, value in windowed.items() if value is not None]
        if full and given:
            raise ConfigError(f"{given[0]} has no effect with full=True; leave out one of them")
        if window is not None and shuffle_bytes is not None:
            raise ConfigError("window and shuffle_bytes both set the size of a window; leave out one of them")
        return self._with(
            "shuffle",
            kind="full" if full else "window",
            seed=whole("seed", seed),
            window=whole_or_none("window", window, 1),
            lanes=whole_or_none("lanes", lanes, 1),
            shuffle_bytes=whole_or_none("shuffle_bytes", shuffle_bytes, 1),
            piece=whole_or_none("piece", piece, 1),
        )

    def seed(self, seed: int) -> Self:
        """Seeds the ops' random numbers; default: the seed of ``shuffle``."""
        return self._with("seed", seed=whole("seed", seed))

    def bucket_by(self, column: str, *, window: int | None = None) -> Self:
        """Puts samples of similar length into one batch.

        Inside each window, samples are sorted by length and cut into global batches; then the batches are shuffled. At
        a step, all ranks get the same bucket. All ranks take the same number of steps.

        Args:
            column: A numeric column of the catalog, such as ``"duration"``.
            window: Samples in a window; default: that of ``shuffle``.
        """
        return self._with(
            "bucket_by", column=text("column", column), window=whole_or_none("window", window, 1)
        )

    def lengths_from(self, column: str) -> Self:
        """Sets the numeric column of lengths for batches that a total bounds, if they are not bucketed."""
        return self._with("lengths_from", column=text("column", column))

    def batch(
        self,
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        total: float | None = None,
        global_total: float | None = None,
        max_rows: int | None = None,
        tail: Literal["drop", "pad"] = "drop",
    ) -> Self:
        """Sets the batch size, by exactly one of the first four arguments.

        Args:
            batch_size: Rows for each rank, at least 1.
            global_batch_size: Rows over all ranks; the ranks' shares differ by at most one row.
            total: Bounds rows × longest length for each rank, in the unit of the column of lengths (seconds, frames,
                tokens). See ``bucket_by`` and ``lengths_from``.
            global_total: The same bound over all ranks: the same global batches for any world size.
            max_rows: The most rows that a total may collect; default 1,024 for each rank, 65,536 over all.
            tail: The epoch's last, incomplete global batch. ``"drop"`` (default) leaves it out. ``"pad"`` fills it with
                samples from the epoch's start, marked False in ``batch.valid``, so that evaluation counts each sample
                once.

        Raises:
            ConfigError: None or several of the sizes are given, or one is not valid.

        Example:
            >>> data = fs.Dataset(images)  # 8 samples
            >>> [batch.num_rows for batch in data.batch(3).loader()]
            [3, 3]
            >>> [int(batch.valid.sum()) for batch in data.batch(3, tail="pad").loader()]
            [3, 3, 2]
        """
        one_of("tail", tail, ("drop", "pad"))
        sizes = batch_sizes(
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            total=total,
            global_total=global_total,
            max_rows=max_rows,
        )
        return self._with("batch", sizes=sizes, tail=tail)
