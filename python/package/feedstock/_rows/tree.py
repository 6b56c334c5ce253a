"""The structure of a data set's items: which value is where in tuples and dicts.

(image, {"boxes": b, "labels": l}) ──flattened──▶ columns "0", "1.boxes", "1.labels" ──rebuilt──▶ the same of batches
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedstock._rows.spec import RESERVED, ResultError

#: The column of items that are one value, without a tuple or dict.
ALONE = "item"

_NUMBERS = (bool, int, float)


@dataclass(frozen=True)
class Leaf:
    """A value, the column ``name``."""

    name: str


@dataclass(frozen=True)
class Elements:
    """A tuple, a list, or a named tuple with the names ``fields``."""

    kind: str
    fields: tuple[str, ...] | None
    children: tuple[Node, ...]


@dataclass(frozen=True)
class Entries:
    """A dict."""

    children: tuple[tuple[str, Node], ...]


Node = Leaf | Elements | Entries


class Flat(dict[str, Any]):
    """An item's values by column, and its structure."""

    tree: Node


def flattened(item: Any, columns: Sequence[str] | None) -> Flat:
    """Returns the values of an item by column.

    Args:
        item: What the data set returned.
        columns: Names of the elements, if the item is a tuple or a list.

    Raises:
        ResultError: It has other elements than ``columns``, or something that has no place in a column.
    """
    if columns is not None:
        if not isinstance(item, (tuple, list)):
            raise ResultError(
                f"returned {type(item).__name__}, and columns= names the elements of tuples; leave it out"
            )
        if len(item) != len(columns):
            raise ResultError(
                f"returned {len(item)} elements, and columns= has {len(columns)} names ({', '.join(columns)})"
            )
        item = dict(zip(columns, item, strict=True))
    flat = Flat()
    flat.tree = _node(item, "", flat)
    return flat


def _node(value: Any, path: str, flat: Flat) -> Node:
    if isinstance(value, Mapping):
        _not_empty(value, path)
        for key in value:
            if not isinstance(key, str) or not key:
                raise ResultError(f"returned a dict with the key {key!r}; keys must be non-empty strings")
        return Entries(tuple((key, _node(one, _below(path, key), flat)) for key, one in value.items()))
    is_numbers = bool(path) and isinstance(value, list) and all(type(one) in _NUMBERS for one in value)
    if isinstance(value, (tuple, list)) and not (is_numbers and value):
        _not_empty(value, path)
        fields = getattr(value, "_fields", None)
        children = tuple(
            _node(one, _below(path, fields[place] if fields else str(place)), flat)
            for place, one in enumerate(value)
        )
        kind = "list" if isinstance(value, list) else type(value).__name__
        return Elements(kind, tuple(fields) if fields else None, children)
    if value is None:
        raise ResultError(f"returned None{_at(path)}; return a value of the same type for every item")
    name = path or ALONE
    if name in flat:
        raise ResultError(f"returned two values that are the column {name!r}; rename a key")
    if name in RESERVED:
        raise ResultError(f"returned the value {name!r}, which the loader sets; rename it")
    flat[name] = value
    return Leaf(name)


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _at(path: str) -> str:
    return f" at {path!r}" if path else ""


def _not_empty(value: Any, path: str) -> None:
    if not value:
        raise ResultError(f"returned an empty {type(value).__name__}{_at(path)}, which has no dtype")


def unnamed(tree: Node) -> Iterator[str]:
    """Yields the columns that are elements of tuples and lists: there is no place for their lengths."""
    if isinstance(tree, Leaf):
        yield tree.name
    elif isinstance(tree, Elements):
        for child in tree.children:
            if not isinstance(child, Entries):
                yield from unnamed(child)
            else:
                yield from _unnamed_below(child)
    else:
        yield from _unnamed_below(tree)


def _unnamed_below(entries: Entries) -> Iterator[str]:
    for _, child in entries.children:
        if not isinstance(child, Leaf):
            yield from unnamed(child)


def rebuilt(tree: Node, columns: Mapping[str, Any]) -> Any:
    """Returns a batch in the structure of the items.

    A dict also gets the lengths of its padded values, and at the top all columns that are not the items': ids, flags,
    and results of functions.
    """
    built = _built(tree, columns)
    if isinstance(tree, Entries):
        used = set(_names(tree))
        used |= {f"{name}_length" for name in used}
        built.update({name: column for name, column in columns.items() if name not in used})
    return built


@functools.lru_cache
def _named(kind: str, fields: tuple[str, ...]) -> Any:
    """Returns one class for all batches, so that they are of one type."""
    return collections.namedtuple(kind, fields)


def _built(tree: Node, columns: Mapping[str, Any]) -> Any:
    if isinstance(tree, Leaf):
        return columns[tree.name]
    if isinstance(tree, Elements):
        values = [_built(child, columns) for child in tree.children]
        if tree.fields is not None:
            return _named(tree.kind, tree.fields)(*values)
        return values if tree.kind == "list" else tuple(values)
    built = {}
    for key, child in tree.children:
        built[key] = _built(child, columns)
        if isinstance(child, Leaf) and (length := f"{child.name}_length") in columns:
            built[f"{key}_length"] = columns[length]
    return built


def _names(tree: Node) -> Iterator[str]:
    if isinstance(tree, Leaf):
        yield tree.name
        return
    children = tree.children if isinstance(tree, Elements) else [child for _, child in tree.children]
    for child in children:
        yield from _names(child)
