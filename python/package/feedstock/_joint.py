"""Several columns of a sample through the same ops: an image and its masks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from feedstock._check import text, whole
from feedstock.errors import ConfigError
from feedstock.ops import Op, decode_image
from feedstock.ops._op import flatten

#: Ops that show pixels from outside of an image.
_PADDING = ("affine", "center_crop", "pad", "perspective", "random_crop", "rotate")


@dataclass(frozen=True)
class JointColumn:
    """How one column of a joint map is decoded and padded. Made by ``fs.image`` and ``fs.mask``."""

    decode: Op
    fill: int


def image(decode: Op | None = None, *, fill: int = 0) -> JointColumn:
    """Describes the image of a joint map.

    Args:
        decode: ``fs.decode_image(…)``, with mode ``"rgb"`` or ``"gray"``; default ``fs.decode_image()``.
        fill: The value of padding, 0 to 255, for every channel; default 0.
    """
    return _column("image", decode_image() if decode is None else decode, fill, is_mask=False)


def mask(decode: Op | None = None, *, fill: int = 255) -> JointColumn:
    """Describes a mask of classes of a joint map.

    Resizing takes the nearest pixel by Pillow's rule, and ops on colours leave the mask unchanged. A mask of another
    size than its image is a bad sample.

    Args:
        decode: ``fs.decode_image(mode="indices", …)``; default that without other parameters.
        fill: The class of padding, 0 to 255; default 255, which losses often ignore.
    """
    decode = decode_image(mode="indices") if decode is None else decode
    return _column("mask", decode, fill, is_mask=True)


def _column(kind: str, decode: Op, fill: int, *, is_mask: bool) -> JointColumn:
    if not isinstance(decode, Op) or _fields(decode)["op"] != "decode_image":
        raise ConfigError(f"{kind} must be given fs.decode_image(…); got {decode!r}")
    if (_fields(decode).get("mode") == "indices") != is_mask:
        need = 'mode="indices"' if is_mask else 'mode="rgb" or "gray"'
        raise ConfigError(f"{kind} must be given fs.decode_image with {need}; got {decode!r}")
    fill = whole("fill", fill, 0)
    if fill > 255:
        raise ConfigError(f"fill must be at most 255; got {fill}")
    return JointColumn(decode, fill)


def joint_chains(columns: Mapping[str, JointColumn], ops: Iterable[Op | Iterable[Op]]) -> dict[str, list[Op]]:
    """Returns each column's chain: its decoder, then ``ops`` with its padding."""
    if not columns:
        raise ConfigError("a joint map must have at least one column; got {}")
    shared = list(flatten(ops))
    chains = {}
    for name, column in columns.items():
        if not isinstance(column, JointColumn):
            raise ConfigError(
                f"column {name!r} of a joint map must be fs.image(…) or fs.mask(…); got {column!r}"
            )
        chains[text("column", name)] = [column.decode, *(_padded(op, column.fill) for op in shared)]
    return chains


def _padded(op: Op, fill: int) -> Op:
    fields = _fields(op)
    if fields["op"] in _PADDING:
        if "fill" in fields:
            raise ConfigError(
                f"in a joint map, each column has its fill: fs.image(fill=…), fs.mask(fill=…); got {op!r}"
            )
        return Op.from_json(json.dumps({**fields, "fill": fill}))
    if "ops" in fields:
        inner = [_padded(Op.from_json(json.dumps(each)), fill) for each in fields["ops"]]
        return Op.from_json(json.dumps({**fields, "ops": [_fields(each) for each in inner]}))
    return op


def _fields(op: Op) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(op.to_json())
    return fields
