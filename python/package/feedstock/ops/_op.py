"""The description of one op."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from feedstock import _feedstock
from feedstock.errors import ConfigError


class Op:
    """An op and its parameters. Parameters that are left out have the defaults of the native library.

    Comparable and hashable by content, and picklable. Use the functions of this package, which name and document the
    parameters: ``resize(224)`` returns ``Op("resize", size=224)``.
    """

    __slots__ = ("_json",)

    def __init__(self, name: str, **parameters: Any) -> None:
        given = {key: value for key, value in parameters.items() if value is not None}
        try:
            self._json = json.dumps({"op": name, **given}, default=_plain, allow_nan=False)
        except ValueError:
            raise ConfigError(f"the parameters of {name} must be finite; got {given}") from None

    @property
    def name(self) -> str:
        """The op's name, such as ``"resize"``."""
        name: str = json.loads(self._json)["op"]
        return name

    @classmethod
    def from_json(cls, text: str) -> Op:
        """Returns the op of a description such as ``{"op": "resize", "size": 224}``."""
        op = cls.__new__(cls)
        op._json = text
        return op

    def to_json(self) -> str:
        """Returns the description, such as ``{"op": "resize", "size": 224}``."""
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
    """Converts numpy's scalars and arrays to plain Python values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a parameter of an op must be a plain value or a numpy array; got {value!r}")


def flatten(ops: Iterable[Op | Iterable[Op]]) -> Iterator[Op]:
    """Yields ops that are given one by one or in lists."""
    for op in ops:
        if isinstance(op, Op):
            yield op
        elif isinstance(op, (list, tuple)):
            yield from flatten(op)
        else:
            raise TypeError(
                f"ops must be feedstock's, such as fs.decode_image(); got {op!r}. For Python functions use "
                "Pipeline.map_rows(fn) of single samples, or Pipeline.map_python(fn) of batches"
            )


def chain_json(ops: Iterable[Op | Iterable[Op]]) -> str:
    """Returns a chain as JSON. Checks order and parameters as far as possible without files."""
    text = "[" + ", ".join(op.to_json() for op in flatten(ops)) + "]"
    _feedstock.check_ops(text)
    return text
