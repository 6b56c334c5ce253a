"""One rank's batches, as trainers take them."""

from __future__ import annotations

import atexit
import contextlib
import json
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from feedstock._agreement import Agreement
from feedstock._ahead import Ahead
from feedstock._check import one_of, whole, whole_or_none
from feedstock._device import current_stream, find_libraries, import_torch, imported_torch, ordinal_of
from feedstock._threads import assigned_threads
from feedstock._workers import Workers, members
from feedstock.errors import ConfigError, FeedstockError

if TYPE_CHECKING:
    from feedstock import _feedstock
    from feedstock._pipeline import Pipeline
    from feedstock.finish import Finish

_STATE_VERSION = 1
_OUTPUTS = ("batch", "numpy", "torch")

# Where a warning about a long wait points: Loader._next, the iterator, the caller.
_STACKLEVEL = 3


class Loader:
    """One rank's batches: a plain iterable with ``len()``, ``set_epoch``, ``state_dict`` and ``load_state_dict``.

    Iterating yields the batches of one epoch. Iterating again goes on: with the next epoch after a finished one, with
    the rest of an unfinished one (``restart=True``: with an epoch's start). All ranks take the same number of steps.
    Nothing runs before the first batch is asked for, or ``start_prefetch``; the batches are made by threads of this
    process, or by ``workers`` on other machines, never by child processes. It is not a subclass of torch's DataLoader,
    because frameworks would shard it once more and lose samples.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        rank: int = 0,
        world_size: int = 1,
        *,
        workers: str | Workers | _feedstock.Members | None = None,
        output: Literal["batch", "numpy", "torch"] = "batch",
        restart: bool = False,
        device: Any = None,
        finish: Mapping[str, Finish] | None = None,
        depth: int = 2,
        static: bool = False,
        nvjpeg: float = 0.0,
    ) -> None:
        one_of("output", output, _OUTPUTS)
        if device is None and (finish or static or depth != 2 or nvjpeg):
            raise ConfigError(
                'finish, depth, static and nvjpeg are about a device; name it: device="cuda" (or "cpu", to finish in '
                "host memory)"
            )
        if static and pipeline._functions:
            raise ConfigError(
                "static=True puts every batch where the one before it was, and map_python works on several at once; "
                "leave one of them out"
            )
        if output == "numpy" and (
            bfloats := [name for name, how in (finish or {}).items() if _is_bfloat(how)]
        ):
            raise ConfigError(
                f'numpy has no bfloat16, which finish makes of {bfloats}; take another type, or output="torch"'
            )
        self.pipeline = pipeline
        self.output = output
        self.restart = restart
        self._ahead = Ahead(pipeline._functions, self._convert) if pipeline._functions else None
        native = pipeline._native
        if not pipeline._has_threads and (threads := assigned_threads()) is not None:
            native = native.options(threads, None, None, None, None)
        if workers is not None:
            native = native.workers(members(workers))
        if self._ahead is not None:
            native = native.options(None, pipeline._slots + self._ahead.depth, None, None, None)
        self._ordinal, self._static = None, static
        if device is not None:
            self._ordinal = ordinal_of(device)
            described = [(output, how.to_json()) for output, how in (finish or {}).items()]
            if (described or nvjpeg) and self._ordinal is not None:
                find_libraries()
            # Functions hold batches of their own, beside the one that the caller has.
            depth = whole("depth", depth, 1) + (self._ahead.depth if self._ahead is not None else 0)
            if self._ahead is not None:
                self._ahead.ordinal = self._ordinal
            native = native.device(self._ordinal, depth, static, described, float(nvjpeg))
        self._native: _feedstock.Loader = native.loader(
            whole("rank", rank), whole("world_size", world_size, 1)
        )
        if output == "numpy" and (place := self._native.place()) != "cpu":
            raise ConfigError(
                f'output="numpy" takes host memory only, and the batches are on {place}; take "batch" or '
                '"torch", whose tensors copy what you need: batch["image"].torch().cpu().numpy()'
            )
        self._placed = True  # by load_state_dict, seek or set_epoch, and not moved from since
        self._taken: tuple[int, int] | None = None  # (epoch, position) of a batch on its way to the caller
        self._iterations = 0
        self._totals: dict[str, float | None] = {}  # as reconfigure was given them
        self._agreement = Agreement() if world_size > 1 else None  # until all ranks agree
        _live.add(self)

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch, or the next one. Iterators taken before end."""
        if self._ahead is None or self._ahead.is_empty():
            self._discard()  # of the end that nobody asked for
            self._native.begin_epoch()
        if self.restart and not self._placed and self.position > 0:
            self._native.abandon_epoch(self.epoch)
            self._discard()
        self._iterations += 1
        return _Batches(self, self._iterations)

    def _next(self) -> Any:
        if self._agreement is not None and self._agreement.before_batch(self):
            self._agreement = None
        self._placed = False
        try:
            if self.output == "torch" and imported_torch() is None:
                self._native.start_prefetch()
                import_torch()  # seconds, in which threads decode
            if self._ahead is not None:
                return self._ahead.next(self._native)
            batch = self._native.next(_STACKLEVEL, current_stream(self._ordinal) if self._static else None)
            if batch is None:
                raise StopIteration
            self._taken = (batch.epoch, batch.position)
            converted = self._convert(batch)
            self._taken = None
            return converted
        except StopIteration:
            raise
        except BaseException:
            # What could not be handed out was not delivered: the next batch asked for is that one again.
            if self._undelivered() is not None:
                self._go(self._state()[2])
            raise

    def _convert(self, batch: _feedstock.Batch) -> Any:
        if self.output == "numpy":
            return batch.numpy(ids=True)
        return batch.torch(ids=True) if self.output == "torch" else batch

    def __len__(self) -> int:
        """Steps of the whole current epoch, the same on all ranks; in every epoch as many, unless a total bounds
        batches. A mix without end has no length."""
        steps = self._native.steps_in(self.epoch)
        if steps is None:
            raise TypeError("a mix that never stops has no length")
        return steps

    @property
    def steps_left(self) -> int:
        """Steps from here to the end of the current epoch."""
        epoch, position, _ = self._state()
        steps = self._native.steps_after(epoch, position)
        if steps is None:
            raise TypeError("a mix that never stops has no length")
        return steps

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._state()[0]

    @property
    def position(self) -> int:
        """The global position of the next batch: samples of the epoch that all ranks together were given."""
        return self._state()[1]

    @property
    def rank(self) -> int:
        """This process's place in the data-parallel group."""
        return self._native.share()[0]

    @property
    def world_size(self) -> int:
        """Ranks in the data-parallel group."""
        return self._native.share()[1]

    @property
    def global_batch_size(self) -> int | None:
        """Rows of a step over all ranks; None where a total bounds batches."""
        return self._native.share()[2]

    @property
    def batch_size(self) -> int | None:
        """Rows of this rank's batches; None where a total bounds them."""
        rank, world_size, rows = self._native.share()
        return None if rows is None else rows // world_size + (rank < rows % world_size)

    @property
    def _step_shape(self) -> dict[str, Any]:
        """How an epoch is cut into steps: the same on all ranks that train together."""
        return {"global batch size": self.global_batch_size, **self.pipeline._batch, **self._totals}

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of ``epoch``, unless the next batch belongs to it: then nothing happens, so that a resumed
        loader stays in its place (with ``restart=True``, only one that has not moved since)."""
        epoch = whole("epoch", epoch)
        here, position, _ = self._state()
        if epoch != here:
            self._native.set_epoch(epoch)
        elif self.restart and position > 0 and not self._placed:
            self._native.seek(epoch, 0)
        else:
            if self._undelivered() is None:
                self._native.set_epoch(epoch)  # stays, or says that there is no such epoch
            return
        self._discard()
        self._placed = True

    def state_dict(self) -> dict[str, Any]:
        """Where to go on: a few hundred bytes, of the batches that were handed out, whatever was prefetched.

        It holds no rank and no world size: any of them, and the batch size, may differ where it is loaded.
        """
        epoch, position, cursor = self._state()
        return {"version": _STATE_VERSION, "epoch": epoch, "position": position, "cursor": cursor}

    def load_state_dict(
        self, state_dict: dict[str, Any], on_change: Literal["error", "next_epoch", "remap"] = "error"
    ) -> None:
        """Goes on where ``state_dict`` was taken.

        Args:
            state_dict: What `state_dict` returned.
            on_change: What to do where files of the data set were added, removed or replaced since. ``"error"``
                (default): ConfigError, which names them where the former catalog is still kept (30 days).
                ``"remap"``: finish the saved epoch with its samples that were not delivered and are still there, in
                the order that they had; the next epoch is of the data as they are now. A sample is the same if it is
                at the same place in a file of the same name and size. It needs the former catalog and 14 bytes of
                memory for each sample that is left. States saved in the rest of that epoch need it, too.
                ``"next_epoch"``: begin the next epoch of the data as they are now; samples of the saved epoch
                that were not delivered are left out, and a warning states so. A copy of the data, or other times and
                inodes, are no change.

        Raises:
            ConfigError: It was saved from another order (data, filter, seed …); the message names what differs.
            GoneError: The former catalog that ``"remap"`` needs is not kept on this machine.
        """
        version = state_dict.get("version")
        if version != _STATE_VERSION:
            raise ConfigError(
                f"state_dict must be of version {_STATE_VERSION}, which this release reads; got version {version!r}"
            )
        self._go(state_dict["cursor"], on_change)
        self._placed = True

    def seek(self, step: int) -> None:
        """Goes to step ``step`` of the current epoch: the next batch is that one."""
        self._native.seek(self.epoch, whole("step", step))
        self._discard()
        self._placed = True

    def samples_in(self, step: int, epoch: int | None = None) -> list[np.ndarray[Any, np.dtype[np.uint64]]]:
        """The sample ids of every rank's batch (uint64 [rows]) at ``step`` of ``epoch`` (default the current one)."""
        chosen = self.epoch if epoch is None else whole("epoch", epoch)
        ranks = self._native.samples_in(chosen, whole("step", step))
        return [np.asarray(samples, dtype=np.uint64) for samples in ranks]

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
        """Takes another share between steps: the order goes on from the same position. What is not given stays; all
        ranks must do the same at the same step. An end of the epoch too short for one new batch is left out
        (``tail="drop"``)."""
        here, ranks, _ = self._native.share()
        share = (
            here if rank is None else whole("rank", rank),
            ranks if world_size is None else whole("world_size", world_size, 1),
            whole_or_none("batch_size", batch_size, 1),
            whole_or_none("global_batch_size", global_batch_size, 1),
            total,
            global_total,
        )
        before, after = self._state()[2], self._native.state()[2]
        if before != after:
            self._native.load_state(before)  # what is ahead was cut for the old share
        try:
            self._native.reconfigure(*share)
        except FeedstockError:
            if before != after:
                self._native.load_state(after)
            raise
        if before != after:
            self._discard()
        if any(size is not None for size in share[2:]):
            self._totals = {"total": total, "global_total": global_total}

    def start_prefetch(self) -> None:
        """Begins to fetch and decode now, for a program that still builds its model. Nothing is handed out, and the
        state stays. To be called last: what moves the loader or changes its share discards what was fetched. Functions
        of ``map_python`` wait for the first batch, and so do errors of reading."""
        self._native.start_prefetch()

    def stats(self) -> dict[str, Any]:
        """What the run under way has done: samples, steps, bytes fetched, seconds in ops and in storage, seconds that
        the caller waited, slots held. Empty before anything runs.

        ``waited_seconds`` is all the time that the caller waited for batches; ``waited_map_python_seconds`` is the part
        of it in which the functions of ``map_python`` were not done. More workers shorten only the rest.

        ``hedges`` counts how often rows of a slow worker were requested from another one as well, ``hedged_samples``
        these rows. Both are 0 while no worker is slow."""
        return self._native.stats()

    def ledger(self) -> dict[str, Any] | None:
        """The proof of exactly-once for the current epoch, or the one just finished: samples planned and delivered to
        this rank, their digests, padding and substitutes; ``exact`` says whether they agree. It covers the batches
        since the loader began or was last moved; None before anything runs (a batch asked for, ``start_prefetch``)."""
        return self._native.ledger()

    def skip_report(self) -> dict[str, Any]:
        """Samples skipped by ``on_error("skip")``: ``count``, and the first 8,192 as dicts of ``sample_id``, ``epoch``
        and ``reason``."""
        count, skipped = self._native.skip_report()
        samples = [{"sample_id": s, "epoch": e, "reason": reason} for s, e, reason in skipped]
        return {"count": count, "samples": samples}

    def warning_report(self) -> dict[str, Any]:
        """What decoders warned of in samples that were delivered all the same: ``counts``, the number of samples by
        kind, and ``samples``, the first 8,192 as dicts of ``sample_id``, ``epoch`` and ``kinds``. Kinds:

        - ``"end_unknown"``: the container cannot prove where the clip ends, so a missing end goes unnoticed.
        - ``"later_streams"``: the Ogg file is a chain of streams, of which the first was decoded.
        - ``"damaged_data"``: some pixels of the image may be wrong. nvJPEG decodes its share without warnings."""
        counts, warned = self._native.warning_report()
        samples = [{"sample_id": s, "epoch": e, "kinds": kinds} for s, e, kinds in warned]
        return {"counts": counts, "samples": samples}

    def padding_share(self, output: str) -> float | None:
        """The share of tensor ``output`` that was padding so far, 0 to 1; None where its rows are equal by nature."""
        return self._native.padding_share(output)

    def close(self) -> None:
        """Ends threads and reads, and frees memory but that of batches still held. Iterating again starts anew, where
        it was left."""
        if self._undelivered() is not None:
            self._go(self._state()[2])
        if self._ahead is not None:
            self._ahead.close()
        self._native.stop()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Loader belongs to its process; pickle the Pipeline and call loader() where it is used"
        )

    def __repr__(self) -> str:
        rank, world_size, rows = self._native.share()
        epoch, position, _ = self._state()
        return f"Loader(rank {rank} of {world_size}, global batch {rows}, epoch {epoch}, position {position})"

    def _state(self) -> tuple[int, int, str]:
        """The place behind the last batch handed out."""
        first = self._undelivered()
        return self._native.state() if first is None else self._native.state_at(*first)

    def _undelivered(self) -> tuple[int, int] | None:
        """(epoch, position) of the first batch that came from the library and did not reach the caller."""
        return self._taken if self._ahead is None else self._ahead.first()

    def _go(self, cursor: str, on_change: str = "error") -> None:
        self._native.load_state(cursor, on_change)
        self._discard()  # only now: a refused move must lose nothing

    def _discard(self) -> None:
        self._taken = None
        if self._ahead is not None:
            self._ahead.clear()


def _is_bfloat(how: Finish) -> bool:
    return bool(json.loads(how.to_json()).get("dtype") == "bfloat16")


class _Batches:
    """One iteration of a loader. It keeps no batch, since that would hold a slot."""

    def __init__(self, loader: Loader, number: int) -> None:
        self._loader = loader
        self._number = number
        self._ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._loader._iterations != self._number:
            raise RuntimeError("another iteration of this loader has begun since; go on with that one")
        try:
            return self._loader._next()
        except StopIteration:
            self._ended = True
            raise


_live: weakref.WeakSet[Loader] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for loader in list(_live):
        with contextlib.suppress(FeedstockError):  # of a forked parent
            loader.close()
