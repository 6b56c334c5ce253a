"""One rank's batches, for trainers."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from feedstock._agreement import Agreement
from feedstock._batches import Batches
from feedstock._check import batch_sizes, whole
from feedstock._device import consumer_stream, current_stream, import_torch, imported_torch, record_stream
from feedstock._options import LoaderOptions, documents_loader_options, takes_loader_options
from feedstock._position import Position
from feedstock._reporting import Reports
from feedstock._rows.steps import ahead_of, compare, row_steps
from feedstock._setup import check, set_up
from feedstock._workers import source_of
from feedstock.errors import ConfigError, FeedstockError

if TYPE_CHECKING:
    import typing_extensions
    from typing_extensions import Self, Unpack

    from feedstock import _feedstock
    from feedstock._pipeline import Pipeline

    # What iterating yields.
    B = typing_extensions.TypeVar("B", default=Any)
else:
    B = TypeVar("B")

_STATE_VERSION = 1

# The line that a warning about a long wait names: above Loader._take, Loader._next and the iterator.
_STACKLEVEL = 4


class _Peeked(NamedTuple):
    """A batch that ``peek`` returned, and that is still to be delivered."""

    place: tuple[int, int]  # (epoch, position)
    batch: Any
    stream: Any  # torch's current stream when it was taken; None in host memory


@documents_loader_options
class Loader(Position, Reports, Generic[B]):
    """Iterates over one rank's batches. Made by ``Pipeline.loader``.

    A loader is a plain iterable with ``len()``, ``set_epoch``, ``state_dict`` and ``load_state_dict``. Iterating yields
    the batches of one epoch. Iterating again continues: with the next epoch after a finished one, or with the rest of
    an unfinished one (with ``restart=True``, from an epoch's start). All ranks take the same number of steps.

    A loader has a single position. For two concurrent passes, make two loaders; they share one thread pool.

    Nothing runs before the first batch is requested or ``start_prefetch`` is called. Threads of this process, or
    ``workers`` on other machines, prepare the batches. Of child processes there are only those that run functions of
    ``map_rows``. ``Loader`` is not a subclass of torch's ``DataLoader``, because frameworks would shard it again and
    lose samples.

    Args:
        pipeline: The pipeline, with ``batch``.
        rank: This process's rank in the data-parallel group; default 0.
        world_size: Ranks in that group; default 1.
        **options: See ``LoaderOptions``.

    Raises:
        ConfigError: The pipeline or an option is not valid. Nothing runs then.

    Example:
        >>> pipeline = fs.Dataset(images).map("image", fs.decode_image(), fs.resize((32, 32))).batch(4)
        >>> loader = pipeline.loader(output="numpy")
        >>> for batch in loader:
        ...     print(batch["image"].shape, batch["valid"].all())
        (4, 32, 32, 3) True
        (4, 32, 32, 3) True
        >>> loader.epoch, loader.steps_left, loader.ledger()["exact"]
        (1, 2, True)
    """

    @takes_loader_options()
    def __init__(
        self, pipeline: Pipeline[Any], rank: int = 0, world_size: int = 1, **options: Unpack[LoaderOptions]
    ) -> None:
        check(options, has_functions=bool(pipeline._functions))
        self.pipeline = pipeline
        self.output = options["output"]
        self.restart: bool = options["restart"]
        world_size = whole("world_size", world_size, 1)
        self._rows = row_steps(
            pipeline._functions, pipeline._steps, self.output, pipeline._native, world_size
        )
        self._static = options["static"]
        source = None if options["workers"] is None else source_of(options["workers"])
        base = pipeline._native
        if self._rows is not None and source is not None:
            base = self._rows.move_to_workers(
                pipeline.dataset._native, base, lambda first: set_up(first, None, options, 0)[0]
            )
        self._ahead = ahead_of(pipeline._functions, self._rows, self._convert)
        held = 0 if self._ahead is None else self._ahead.depth
        native, self._ordinal = set_up(base, source, options, held)
        if self._ahead is not None:
            self._ahead.ordinal = self._ordinal
        self._native = native.loader(whole("rank", rank), world_size)
        if self.output == "numpy" and (place := self._native.place()) != "cpu":
            raise ConfigError(
                f'output="numpy" needs batches in host memory; they are on {place}. Use output="batch" or "torch" and '
                'copy the columns that you need: batch["image"].torch().cpu().numpy()'
            )
        if self._rows is not None:
            self._rows.open(
                pipeline.dataset._native, self._native, lambda first: set_up(first, None, options, 0)[0]
            )
        self._placed = True  # by load_state_dict, seek or set_epoch, and not moved from since
        self._taken: tuple[int, int] | None = None  # (epoch, position) of a batch on its way to the caller
        self._peeked: _Peeked | None = None
        self._ends_first = False  # the epoch's end was found before the peeked batch, and not reported
        self._finished = None
        self._iterations = 0
        self._resized: dict[str, float | None] = {}  # the batch size that reconfigure was given last
        self._last_run = {}, None
        self._agreement = Agreement() if world_size > 1 else None  # until all ranks agree
        _live.add(self)
        if source is not None:
            source.watch(self)

    def __iter__(self) -> Iterator[B]:
        """Returns an iterator over the rest of the epoch, or the next one. It invalidates earlier iterators."""
        self._ends_first = False
        if self._peeked is None and (self._ahead is None or self._ahead.is_empty()):
            self._forget()  # an epoch's end that was not requested
            self._native.begin_epoch()
        if self.restart and not self._placed and self.position > 0:
            self._native.abandon_epoch(self.epoch)
            self._discard()
        self._iterations += 1
        return Batches(self, self._iterations)

    def _next(self) -> Any:
        if self._agreement is not None and self._agreement.before_batch(self):
            self._agreement = None
        self._placed = False
        if self._ends_first:
            self._ends_first = False
            raise StopIteration
        if self._peeked is None:
            return self._take().batch
        self._native.share()  # raises ForkError in a forked child, where the batch is the parent's
        peeked, self._peeked, self._finished = self._peeked, None, None
        if peeked.stream is not None and (now := consumer_stream(self._ordinal)) != peeked.stream:
            now.wait_stream(peeked.stream)  # the caller has changed the stream meanwhile
            record_stream(peeked.batch, now)
        return peeked.batch

    def peek(self) -> B | None:
        """Returns the next batch without delivering it: the iteration yields the same object next.

        The position and ``state_dict`` do not change, and peeking again returns the same batch. Changes that you make
        to its arrays are in the batch that the iteration yields. Until then it holds a slot, and ``ledger`` counts it.
        A loader with ``restart=True`` yields it only to an iteration that has begun; a new one begins an epoch.

        Returns:
            The batch in the form of ``output``, after functions of ``map_python``; None after the last epoch.

        Raises:
            ConfigError: The loader has fixed addresses (``static=True``): peeking would overwrite the batch in use.

        Example:
            >>> loader = fs.Dataset(images).batch(4).loader()
            >>> first = loader.peek()
            >>> loader.position, next(iter(loader)) is first, loader.position
            (0, True, 4)
        """
        if self._static:
            raise ConfigError(
                "peek needs a second batch in memory, which static=True excludes; leave out static"
            )
        self._native.share()  # raises ForkError in a forked child, where a peeked batch is the parent's
        if self._peeked is None:
            finished = self._ledger()
            try:
                self._peeked = self._take()
            except StopIteration:
                self._ends_first, self._finished = True, finished
                try:
                    self._peeked = self._take()
                except StopIteration:
                    return None
        batch: B = self._peeked.batch
        return batch

    def _take(self) -> _Peeked:
        """Waits for the next batch; raises StopIteration at an epoch's end."""
        try:
            if self.output == "torch" and imported_torch() is None:
                self._native.start_prefetch()
                import_torch()  # takes seconds, in which threads decode
            if self._ahead is not None:
                result = self._ahead.next(self._native)
                return _Peeked(self._ahead.place, result, consumer_stream(self._ordinal))
            batch = self._native.next(_STACKLEVEL, current_stream(self._ordinal) if self._static else None)
            if batch is None:
                raise StopIteration
            self._taken = (batch.epoch, batch.position)
            taken = _Peeked(self._taken, self._convert(batch), consumer_stream(self._ordinal))
            self._taken = None
            return taken
        except StopIteration:
            raise
        except BaseException:
            # The caller did not get the batch, so the next request returns it again.
            if self._undelivered() is not None:
                self._go(self._state()[2])
            raise

    def _convert(self, batch: _feedstock.Batch) -> Any:
        if self._rows is not None and self._rows.on_workers:
            return self._rows.yielded(self._rows.rows_of(batch))
        if self.output == "numpy":
            return batch.numpy(ids=True)
        return batch.torch(ids=True) if self.output == "torch" else batch

    @property
    def _step_shape(self) -> dict[str, Any]:
        """The options that cut an epoch into steps: equal on all ranks that train together."""
        totals = {name: size for name, size in self._resized.items() if name in ("total", "global_total")}
        return {"global batch size": self.global_batch_size, **self.pipeline._batch, **totals}

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of ``epoch``.

        Does nothing if the next batch belongs to ``epoch``, so that a resumed loader keeps its position. (With
        ``restart=True``, only a loader that was not iterated since it was resumed keeps it.)

        Args:
            epoch: The epoch, at least 0.

        Raises:
            ConfigError: ``epochs`` of the pipeline ends before this epoch.
        """
        epoch = whole("epoch", epoch)
        here, position, _ = self._state()
        if epoch != here:
            self._native.set_epoch(epoch)
        elif self.restart and position > 0 and not self._placed:
            self._native.seek(epoch, 0)
        else:
            if self._undelivered() is None:
                self._native.set_epoch(epoch)  # keeps the position; an error if there is no such epoch
            return
        self._discard()
        self._placed, self._ends_first = True, False

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last delivered batch: a dict of a few hundred bytes, JSON-serializable.

        Prefetched batches are not part of it. It is the same on all ranks. Rank, world size and batch size may differ
        where it is loaded.

        Returns:
            ``version``, ``epoch``, ``position`` and ``cursor``; with ``map_rows``, names and versions of its functions.

        Example:
            >>> pipeline = fs.Dataset(images).shuffle(seed=7).batch(4)
            >>> loader = pipeline.loader()
            >>> first = next(iter(loader))
            >>> state = loader.state_dict()
            >>> state["epoch"], state["position"]
            (0, 4)
            >>> resumed = pipeline.loader()
            >>> resumed.load_state_dict(state)
            >>> rest = next(iter(resumed))
            >>> sorted([*first.sample_ids.tolist(), *rest.sample_ids.tolist()])
            [0, 1, 2, 3, 4, 5, 6, 7]
        """
        epoch, position, cursor = self._state()
        state = {"version": _STATE_VERSION, "epoch": epoch, "position": position, "cursor": cursor}
        return state if self._rows is None else {**state, "map_rows": self._rows.identities}

    def load_state_dict(
        self, state_dict: dict[str, Any], on_change: Literal["error", "next_epoch", "remap"] = "error"
    ) -> None:
        """Continues where ``state_dict`` was saved.

        Args:
            state_dict: A result of ``state_dict()`` of any rank.
            on_change: The reaction if files of the data set were added, removed or replaced since. Copies of the
                data, and other times or inodes, are not changes.

                - ``"error"`` (default): ConfigError. It names the files if the former catalog is still stored (30
                  days).
                - ``"remap"``: finishes the saved epoch with those of its remaining samples that still exist, in their
                  former order. The next epoch reads the changed data. A sample is the same if it is at the same place
                  in a file of the same name and size. It needs the former catalog, and 14 bytes of memory for each
                  remaining sample. States saved in the rest of that epoch need both, too.
                - ``"next_epoch"``: begins the next epoch, of the changed data. The remaining samples of the saved
                  epoch are left out, and a warning is logged.

        Raises:
            ConfigError: The state is of another order (data, filter, seed …); the message names the differences.
            GoneError: ``"remap"`` needs the former catalog, which this machine does not have.
        """
        version = state_dict.get("version") if isinstance(state_dict, dict) else state_dict
        if version != _STATE_VERSION:
            raise ConfigError(
                f"state_dict must have version {_STATE_VERSION}, which this release reads; got version {version!r}"
            )
        self._go(state_dict["cursor"], on_change)
        compare(state_dict.get("map_rows"), [] if self._rows is None else self._rows.identities)
        self._placed, self._ends_first = True, False

    def seek(self, step: int) -> None:
        """Goes to a step of the current epoch.

        Args:
            step: The step of the next batch, at least 0.
        """
        self._native.seek(self.epoch, whole("step", step))
        self._discard()
        self._placed, self._ends_first = True, False

    def reconfigure(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        total: float | None = None,
        global_total: float | None = None,
    ) -> None:
        """Changes rank, world size or batch size between two steps. The order continues at the same position.

        All ranks must do the same at the same step. If the rest of the epoch is shorter than one new batch, it is left
        out (``tail="drop"``).

        Args:
            rank: The new rank; default: unchanged.
            world_size: The new number of ranks; default: unchanged.
            batch_size, global_batch_size, total, global_total: At most one of them, as for ``Pipeline.batch``;
                default: unchanged.

        Raises:
            ConfigError: The rank is not below the world size, or more than one batch size is given.
        """
        here, ranks, _ = self._native.share()
        here = here if rank is None else whole("rank", rank)
        ranks = ranks if world_size is None else whole("world_size", world_size, 1)
        sizes = batch_sizes(
            batch_size=batch_size, global_batch_size=global_batch_size, total=total, global_total=global_total
        )
        before, after = self._state()[2], self._native.state()[2]
        if before != after:
            self._native.load_state(before)  # batches ahead were made for the old share
        try:
            self._native.reconfigure(here, ranks, sizes)
        except FeedstockError:
            if before != after:
                self._native.load_state(after)
            raise
        if before != after:
            self._discard()
        if any(size is not None for size in sizes.values()):
            self._resized = sizes

    def start_prefetch(self) -> None:
        """Begins to fetch and decode, for example while the program builds its model.

        The position does not change. Call it last: ``seek``, ``set_epoch``, ``load_state_dict`` and ``reconfigure``
        discard what was fetched. Functions of ``map_python`` and ``map_rows`` start with the first request for a
        batch, which also raises errors of reading.
        """
        self._native.start_prefetch()

    def close(self) -> None:
        """Stops reading and decoding, and frees all memory except that of batches that are still held.

        The position is kept: iterating again starts there. Functions of ``map_python`` that are running are waited
        for, up to 10 s, and processes of ``map_rows`` are ended. A loader with ``restart=True`` frees its memory at the
        end of every iteration.
        """
        self._release()
        self._last_run = {}, None

    def _release(self) -> None:
        """Does the same as ``close``, but keeps the statistics and the ledger."""
        stats = self._native.stats()
        last_run = (stats, self._finished or self._ledger()) if stats else self._last_run
        if self._undelivered() is not None:
            self._go(self._state()[2])
        try:
            if self._ahead is not None:
                self._ahead.close()
        finally:
            self._native.stop()
            self._last_run = last_run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Loader belongs to its process and cannot be pickled; pickle the Pipeline, and call loader() where it is "
            "used"
        )

    def __repr__(self) -> str:
        rank, world_size, rows = self._native.share()
        epoch, position, _ = self._state()
        return f"Loader(rank {rank} of {world_size}, global batch {rows}, epoch {epoch}, position {position})"

    def _state(self) -> tuple[int, int, str]:
        """Returns the position after the last delivered batch."""
        first = self._undelivered()
        return self._native.state() if first is None else self._native.state_at(*first)

    def _undelivered(self) -> tuple[int, int] | None:
        """Returns (epoch, position) of the first batch that came from the library and did not reach the caller."""
        if self._peeked is not None:
            return self._peeked.place
        return self._taken if self._ahead is None else self._ahead.first()

    def _go(self, cursor: str, on_change: str = "error") -> None:
        self._native.load_state(cursor, on_change)
        self._discard()  # only now: a move that fails must lose nothing

    def _take_over(self, former: Loader[Any]) -> None:
        """Continues where ``former`` is, with its batch size, and closes it. Its iterators end with an error."""
        sizes = {name: size for name, size in former._resized.items() if size is not None}
        if sizes:
            self.reconfigure(**sizes)  # type: ignore[arg-type]
        state = former.state_dict()
        if (state["epoch"], state["position"]) != (0, 0):
            self.load_state_dict(state)
            self._placed = former._placed
        former._iterations += 1
        former.close()

    def _end_iteration(self, number: int) -> None:
        """Frees the memory of an evaluation, unless a newer iteration uses it."""
        if self.restart and self._iterations == number:
            self._release()

    def _discard(self) -> None:
        """Forgets what was made ahead, since the loader was moved."""
        self._forget()
        if self._rows is not None:
            self._rows.skips.move()

    def _forget(self) -> None:
        self._taken = None
        self._peeked = self._finished = None
        self._last_run = {}, None
        if self._ahead is not None:
            self._ahead.clear()


_live: weakref.WeakSet[Loader[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for loader in list(_live):
        # Loaders of a forked parent, and warnings that are errors: the other loaders are closed nevertheless.
        with contextlib.suppress(Exception):
            loader.close()
