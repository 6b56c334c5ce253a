"""One iteration of a loader."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol


class Iterated(Protocol):
    """What an iteration needs of its loader."""

    _iterations: int

    def _next(self) -> Any: ...

    def _end_iteration(self, number: int) -> None: ...


class Batches:
    """One iteration of a loader. It keeps no reference to a batch, which would hold a slot."""

    def __init__(self, loader: Iterated, number: int) -> None:
        self._loader = loader
        self._number = number
        self._ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._loader._iterations != self._number:
            raise RuntimeError(
                "this iterator was invalidated by a later iter() of the same loader; use that one, or make two loaders"
            )
        try:
            return self._loader._next()
        except StopIteration:
            self._end()
            raise

    def __del__(self) -> None:
        # An evaluation was left early. Its loader may be closed, or belong to a forked parent.
        with contextlib.suppress(Exception):
            self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._loader._end_iteration(self._number)
