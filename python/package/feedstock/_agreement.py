"""Compares the loaders of all ranks at the first batch, through torch.distributed's store.

    process k:  set  <loader>/first = its description, if it is the first to arrive (add <loader>/arrived is 1)
                get  <loader>/first   ─▶ it differs: set <loader>/verdict = what differs, if it is the first that does
                add  <loader>/agreed  ─▶ it was the last: set <loader>/verdict = agreed
                poll <loader>/verdict, at most ``timeout`` seconds

There is no collective. If a process never makes the loader, the others wait once, log a warning, and continue. The
verdict stays in the store, so every process raises the same error, also one that stopped waiting: it looks again before
later batches. A process reads one description, so the load of the store grows linearly with the number of processes.

Without torch.distributed, ranks compare nothing: Horovod, for example, has no store with counters.

``<loader>`` is the group's ranks, the line of the program that made the loader, and a number. The line keeps a loader
that only some ranks make from being compared with the next loader of the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from feedstock.errors import ConfigError, FeedstockError

if TYPE_CHECKING:
    from feedstock._loader import Loader

log = logging.getLogger("feedstock")

#: Seconds that the first batch waits for other ranks. Ranks that train together meet in a collective near their first
#: batch, so this wait delays nothing. A rank that loads alone waits this long, once for each loader.
TIMEOUT_SECONDS = 30.0

# Between two looks for a verdict. It doubles, so that ranks that arrive together wait for milliseconds, and 1,024 ranks
# that wait for one send the store about 4,000 requests a second.
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.002, 0.25

# Between looks for a late verdict, while batches go on. A look is a request of about 0.1 ms.
_LATE_LOOK_SECONDS = 2.0

# How long a rank that raises stays for the others to read why: two late looks, and a margin for busy machines.
_LINGER_SECONDS = 5.0

_AGREED, _DIFFER = "agreed", "differ: "

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep

# Loaders compared so far, by group and line, of each store. A process group that is made again has another store, where
# numbers begin at 0 again.
_numbers: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


class Agreement:
    """Compares one loader with the loaders of other ranks, from its first batch on.

    Args:
        ranks: Ranks of the default process group that make this loader, this process's among them. None: all of them,
            if the loader's rank and world size are this process's in that group; otherwise nothing is compared.
        timeout: Seconds that the first batch waits for them; default 30. 0: nothing is compared.
    """

    def __init__(self, ranks: Iterable[int] | None = None, timeout: float = TIMEOUT_SECONDS) -> None:
        self._ranks = None if ranks is None else list(ranks)
        self._timeout = timeout
        self._line = _line_of_program()
        self._ballot: _Ballot | None = None
        self._next_look = 0.0
        self._difference: str | None = None

    def before_batch(self, loader: Loader) -> bool:
        """Compares at the first batch, and looks for a late verdict at later ones; returns True when it is done.

        Raises:
            ConfigError: Two ranks differ. Every rank raises it, at every batch that it asks for.
        """
        if self._difference is not None:
            raise ConfigError(self._difference)
        try:
            verdict = self._first_look(loader) if self._ballot is None else self._late_look(self._ballot)
        except FeedstockError:
            raise
        except RuntimeError as error:  # the store lacks an operation, or its process ended
            log.warning("the ranks' loaders were not compared: the process group's store failed: %s", error)
            return True
        if verdict is not None and verdict.startswith(_DIFFER):
            self._difference = verdict.removeprefix(_DIFFER)
            self._let_others_see()
            raise ConfigError(self._difference)
        return verdict is not None

    def _first_look(self, loader: Loader) -> str | None:
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
            return _AGREED  # other ranks cannot be reached
        here = (distributed.get_rank(), distributed.get_world_size())
        if self._ranks is None and here != (loader.rank, loader.world_size):
            return _AGREED  # another group divides the data
        ranks = list(range(here[1])) if self._ranks is None else self._ranks
        if self._timeout <= 0 or len(ranks) < 2:
            return _AGREED
        mine = {"rank": here[0], **description(loader)}
        self._ballot = ballot = _Ballot(_default_store(), ranks, self._line, mine)
        loader._native.start_prefetch()  # threads decode while this one waits
        deadline, pause = time.monotonic() + self._timeout, _FIRST_POLL_SECONDS
        while (verdict := ballot.verdict()) is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LAST_POLL_SECONDS)
        if verdict is None:
            log.warning(
                "%d of %d ranks requested a batch of the loader of %s within %g s; the loaders of the others are "
                "compared when they request theirs",
                ballot.arrived(),
                len(ranks),
                self._line,
                self._timeout,
            )
            self._next_look = time.monotonic() + _LATE_LOOK_SECONDS
        return verdict

    def _let_others_see(self) -> None:
        """Gives the others time to read the verdict, because the store ends with its process, often rank 0."""
        deadline = time.monotonic() + _LINGER_SECONDS
        if self._ballot is not None:
            with contextlib.suppress(RuntimeError):
                self._ballot.see()
                while self._ballot.unseen() > 0 and time.monotonic() < deadline:
                    time.sleep(_FIRST_POLL_SECONDS)

    def _late_look(self, ballot: _Ballot) -> str | None:
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + _LATE_LOOK_SECONDS
        return ballot.verdict()


class _Ballot:
    """One loader's keys in the store."""

    def __init__(self, store: Any, ranks: list[int], line: str, mine: dict[str, Any]) -> None:
        scope = hashlib.sha256(json.dumps([ranks, line]).encode()).hexdigest()[:16]
        numbers = _numbers.setdefault(store, Counter())
        self._store, self._processes, self._mine = store, len(ranks), mine
        self._key = f"feedstock/{scope}/{numbers[scope]}"
        self._is_compared = False
        numbers[scope] += 1
        if store.add(f"{self._key}/arrived", 1) == 1:
            store.set(f"{self._key}/first", json.dumps(mine))

    def arrived(self) -> int:
        """Returns the number of processes that sent or compared a description."""
        return int(self._store.add(f"{self._key}/arrived", 0))

    def see(self) -> None:
        """Counts this process among those that know the verdict."""
        self._store.add(f"{self._key}/seen", 1)

    def unseen(self) -> int:
        """Returns the number of processes that do not know the verdict."""
        return self._processes - int(self._store.add(f"{self._key}/seen", 0))

    def verdict(self) -> str | None:
        """Returns the verdict if there is one. Compares with the first description once that is stored."""
        if not self._is_compared and self._store.check([f"{self._key}/first"]):
            self._compare(json.loads(self._store.get(f"{self._key}/first")))
            self._is_compared = True
        if not self._store.check([f"{self._key}/verdict"]):
            return None
        return str(self._store.get(f"{self._key}/verdict").decode())

    def _compare(self, first: dict[str, Any]) -> None:
        differing = difference(self._mine, first)
        if differing is not None:
            if self._store.add(f"{self._key}/differ", 1) == 1:  # a later one would name another pair of ranks
                self._store.set(f"{self._key}/verdict", _DIFFER + differing)
        elif self._store.add(f"{self._key}/agreed", 1) == self._processes:
            self._store.set(f"{self._key}/verdict", _AGREED)  # all are equal to the first, so no two differ


def description(loader: Loader) -> dict[str, Any]:
    """Returns what must be equal on all ranks, by the names in errors."""
    cursor = json.loads(loader.state_dict()["cursor"])
    fingerprint = dict(cursor["fingerprint"])
    for name in ("catalog", "blocks", "filter"):
        fingerprint[name] = f"{fingerprint[name]:016x}"  # hashes, as other messages show them
    return {
        "samples": len(loader.pipeline.dataset),
        "plan version": fingerprint.pop("version"),
        **fingerprint,
        "epoch": cursor["epoch"],
        "position": cursor["position"],
        "began with": [
            (f"{begun['fingerprint']['catalog']:016x}", begun["position"])
            for begun in cursor.get("carried", [])
        ],
        "ops": f"{cursor['ops']:016x}",
        **({} if loader._rows is None else {"map_rows": loader._rows.identities}),
        "world size": loader.world_size,
        **loader._step_shape,
    }


def difference(mine: Mapping[str, Any], first: Mapping[str, Any]) -> str | None:
    """Returns the differences between two ranks' descriptions as an error's message; None if there are none."""
    names = [name for name in {**first, **mine} if name != "rank" and mine.get(name) != first.get(name)]
    if not names:
        return None
    here, there = f"on rank {mine['rank']}", f"on rank {first['rank']}"
    fields = "; ".join(f"{name}: {mine.get(name)} {here}, {first.get(name)} {there}" for name in names)
    advice = "give all ranks the same data set, options and checkpoint"
    if "catalog" in names or "blocks" in names:
        advice += (
            ". Catalogs differ where files differ, or where one machine has stored an older catalog: delete that, or "
            'open the data set with catalog="memory"'
        )
    return f"rank {mine['rank']} and rank {first['rank']} are about to load different batches: {fields}; {advice}"


def of_all_ranks() -> Agreement | None:
    """Returns the agreement for a loader that every process of the default group makes, model-parallel peers included.

    Returns None if no group is initialized.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    return Agreement(range(distributed.get_world_size()))


def _line_of_program() -> str:
    """Returns file and line of the program that makes a loader: the first frame outside of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(_PACKAGE):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _default_store() -> Any:
    """Returns the store of the default process group; torchrun makes one for each attempt."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
