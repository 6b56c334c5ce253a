"""The description of one op."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from feedstock import _feedstock


class Op:
    """One op and its parameters; those left out take the defaults of the native library.

    Equal, hashable by content, and picklable. ``Op("resize", size=224)`` is what ``resize(224)`` returns; use the
    functions, which document and name the parameters.
    """

    __slots__ = ("_json",)

    def __init__(self, name: str, **parameters: Any) -> None:
        given = {key: value for key, value in parameters.items() if value is not None}
        self._json = json.dumps({"op": name, **given}, default=_plain)

    @classmethod
    def from_json(cls, text: str) -> Op:
        """The op that ``text`` describes, as ``{"op": "resize", "size": 224}``."""
        op = cls.__new__(cls)
        op._json = text
        return op

    def to_json(self) -> str:
        """The description, as ``{"op": "resize", "size": 224}``."""
        return self._json

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and json.loads(self._json) == json.loads(other._json)

    def __hash__(self) -> int:
        return hash(json.dumps(json.loads(self._json), sort_keys=True))

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Op.from_json, (self._json,)

    def __repr__(self) -> str:
        fields = json.loads(self._json)
        name = fields.pop("op")
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in fields.items())})"


def _plain(value: Any) -> Any:
    """Numpy's scalars and arrays as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"an op's parameter cannot be {value!r}")


def flatten(ops: Iterable[Op | Iterable[Op]]) -> Iterator[Op]:
    """Ops given one by one or in lists."""
    for op in ops:
        if isinstance(op, Op):
            yield op
        elif isinstance(op, (list, tuple)):
            yield from flatten(op)
        else:
            raise TypeError(
                f"ops must be feedstock's, such as fs.decode_image(); got {op!r}. Python functions run on batches: "
                "Pipeline.map_python(fn)"
            )


def chain_json(ops: Iterable[Op | Iterable[Op]]) -> str:
    """A chain as JSON, its order and parameters checked as far as that needs no file."""
    text = "[" + ", ".join(op.to_json() for op in flatten(ops)) + "]"
    _feedstock.check_ops(text)
    return text
