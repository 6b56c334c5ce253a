"""The function of ``fs.from_torch``: an item of a map-style data set, with global generators seeded by the sample."""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from feedstock._rows.tree import Flat, flattened

#: The column of the data set of indexes.
INDEX = "index"

# How far below the data set augmentations are looked for, and in how many objects. A composition in a list of
# transforms of a data set that is wrapped in two others is 6 deep.
_DEPTH = 8
_MOST_OBJECTS = 10_000

# Longer lists are samples, not transforms.
_MOST_ELEMENTS = 64

# Their classes have no transforms as attributes.
_LIBRARIES = {
    *sys.stdlib_module_names,
    "PIL",
    "cv2",
    "datasets",
    "numpy",
    "pandas",
    "pyarrow",
    "torch",
    "torchvision",
}

_WORD = 2**32


class Items:
    """Returns items of ``dataset`` by index. It is pickled with the data set, and runs in the processes.

    Args:
        dataset: The map-style data set.
        columns: Names of the elements of its items.
    """

    def __init__(self, dataset: Any, columns: Sequence[str] | None) -> None:
        self.dataset = dataset
        self._columns = columns
        self._found: list[Any] | None = None  # augmentations with separate generators

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": None}

    def __call__(self, row: dict[str, Any], rng: np.random.Generator) -> Flat:
        """Returns the item of ``row["index"]`` by column. Its random numbers depend on the bits of ``rng`` only."""
        index = int(row[INDEX])
        words = rng.bit_generator.random_raw(4)
        seeded = list(with_generators(self.dataset)) if self._found is None else self._found
        had_torch = "torch" in sys.modules
        item = self._item(index, words, seeded)
        if self._found is None:
            self._found = list(with_generators(self.dataset))
        # Transforms that the first item makes are seeded too, and torch if an item imports it: it is made again.
        if len(self._found) != len(seeded) or had_torch != ("torch" in sys.modules):
            item = self._item(index, words, self._found)
        return flattened(item, self._columns)

    def _item(self, index: int, words: Any, found: list[Any]) -> Any:
        _seed(words, found)
        many = getattr(self.dataset, "__getitems__", None)
        if callable(many):
            # One index: the items of a longer list would share the generators.
            (item,) = many([index])
            return item
        return self.dataset[index]


def _seed(words: Any, found: list[Any]) -> None:
    first, second, third, fourth = (int(word) for word in words)
    random.seed(first)
    np.random.seed([second % _WORD, second // _WORD])
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # Not torch.manual_seed, which formats the stack for each device that has not been used yet.
        torch.default_generator.manual_seed(third)
    for one in found:
        if hasattr(one, "set_random_state"):
            one.set_random_state(np.random.default_rng(fourth), random.Random(fourth))
        else:
            one.set_random_seed(fourth % _WORD)


def with_generators(dataset: Any) -> Iterator[Any]:
    """Yields the compositions and transforms of albumentations among the attributes of a data set."""
    seen: dict[int, Any] = {}  # kept alive, so that no two objects have one id
    left = [(dataset, 0)]
    while left and len(seen) < _MOST_OBJECTS:
        value, depth = left.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        kind = type(value)
        is_of_library = kind.__module__.partition(".")[0] == "albumentations"
        if is_of_library and (hasattr(value, "set_random_state") or hasattr(value, "set_random_seed")):
            yield value
        elif depth < _DEPTH:
            left += [(below, depth + 1) for below in _below(value)]


def _below(value: Any) -> list[Any]:
    """Returns what an object refers to, as far as it may be a transform."""
    if isinstance(value, (str, bytes, int, float, np.ndarray, type, types.ModuleType)):
        return []
    if isinstance(value, dict):
        return list(value.values()) if len(value) <= _MOST_ELEMENTS else []
    if isinstance(value, (list, tuple, set)):
        return list(value) if len(value) <= _MOST_ELEMENTS else []
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, types.FunctionType):
        return _of_function(value)
    below = list(getattr(value, "__dict__", {}).values())
    for kind in type(value).__mro__:
        if kind.__module__.partition(".")[0] not in _LIBRARIES:
            below += list(vars(kind).values())  # methods use globals
    return below


def _of_function(function: Callable[..., Any]) -> list[Any]:
    """Returns the variables that a function uses: those of its closure, and globals by name."""
    assert isinstance(function, types.FunctionType)
    below: list[Any] = list(function.__defaults__ or ())
    for cell in function.__closure__ or ():
        try:
            below.append(cell.cell_contents)
        except ValueError:  # not set yet
            continue
    names = function.__code__.co_names
    return below + [function.__globals__[name] for name in names if name in function.__globals__]
