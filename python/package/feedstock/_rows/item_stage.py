"""The stage that makes a map-style data set's items from their indexes: ``fs.from_torch``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedstock._rows.columns import Rows
from feedstock._rows.items import INDEX
from feedstock._rows.processes import Processes
from feedstock._rows.sent import gathered, lengths_of, specs_of
from feedstock._rows.spec import SentSpec
from feedstock._rows.stage import Stage
from feedstock._rows.tree import Entries, Node, rebuilt, unnamed
from feedstock.errors import ConfigError

# Items that are made before the first batch: enough to find an axis whose length differs in most of them.
_TRIED = 4


class ItemStage(Stage):
    """A stage of indexes in, and items out. It is the first one. The arguments are those of ``Stage``."""

    _tree: Node

    @staticmethod
    def places(samples: int) -> list[int]:
        """Returns which samples of a data set are tried: evenly spaced, the first and the last among them."""
        return sorted({place * (samples - 1) // (_TRIED - 1) for place in range(_TRIED)})

    def attempt_some(self, firsts: Sequence[Rows]) -> Rows:
        """Makes a few items, sets ``outputs`` by them, and returns a batch of one with its item.

        Raises:
            ConfigError: All fail, or they do not have what batches need.
        """
        self.begin()
        assert isinstance(self._executor, Processes)
        rows = [(first.inputs([INDEX], str(self)).row(0), first.ids[0], first.epoch) for first in firsts]
        attempts = self._executor.attempts(rows, None)
        good = [number for number, tried in enumerate(attempts) if tried.failure is None]
        if not good:
            raise ConfigError(
                f"{self} finds dtypes and shapes on {len(firsts)} items, all of which fail. Item "
                f"{int(rows[0][0][INDEX])} {attempts[0].failure}"
            )
        tried = [(int(rows[number][0][INDEX]), attempts[number].values) for number in good]
        self.outputs = specs_of(tried, str(self))
        tree = attempts[good[0]].tree
        assert tree is not None
        self._tree = tree
        self._check_padded()
        first = firsts[good[0]]
        values = attempts[good[0]].values
        sent = {name: value for name, value in values.items() if isinstance(self.outputs[name], SentSpec)}
        arrays = {name: value[None] for name, value in values.items() if name not in sent}
        self._put(first, {**arrays, **gathered(self.outputs, {0: sent}, 1)})
        return first

    def _check_padded(self) -> None:
        assert self.outputs is not None
        padded = {
            name
            for name, spec in self.outputs.items()
            if isinstance(spec, SentSpec) and spec.axis is not None
        }
        for name in padded.intersection(unnamed(self._tree)):
            raise ConfigError(
                f"{self}: value {name!r} has several lengths ({self.outputs[name]}), and a tuple has no place for "
                "them. Name its elements by columns=, or return a dict: batches then have <name>_length"
            )

    def check_names_for(self, functions: int) -> None:
        """Raises ConfigError if the items have no names, and functions follow."""
        if functions > 0 and not isinstance(self._tree, Entries):
            raise ConfigError(
                f"map_rows gets and returns columns by name, and the items of {self} have none; name the elements of "
                "its tuples by columns="
            )

    def _put(self, rows: Rows, results: Mapping[str, Any]) -> None:
        assert self.outputs is not None
        del rows.columns[INDEX]
        rows.replace(results, self._output)
        rows.lengths.update(lengths_of(self.outputs, results))

    def rebuilt(self, columns: Mapping[str, Any]) -> Any:
        """Returns a batch in the structure of the items."""
        return rebuilt(self._tree, columns)
