"""Several columns of a sample through the same ops: an image, its masks, and boxes and keypoints that follow it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from feedstock import _feedstock
from feedstock._check import column_names, one_of, real, text, whole
from feedstock.errors import ConfigError
from feedstock.ops import Op, decode_image
from feedstock.ops._op import chain_json, flatten

#: Ops that show pixels from outside of an image.
_PADDING = (
    "affine",
    "center_crop",
    "pad",
    "pad_to",
    "perspective",
    "random_crop",
    "random_zoom_out",
    "rotate",
)


#: The description of the matrix of an image's geometry.
_TRANSFORM = json.dumps({"kind": "transform"})


@dataclass(frozen=True)
class JointColumn:
    """How one column of a joint map is read. Made by ``fs.image``, ``fs.mask``, ``fs.boxes`` and ``fs.keypoints``.

    Images and masks have a decoder, and a value of padding. Boxes and keypoints have a description (JSON) instead, and
    boxes may have columns along them. An image may have the matrix of its geometry as a further result.
    """

    decode: Op | None
    fill: int = 0
    annotation: str | None = None
    along: tuple[str, ...] = ()
    transform: bool = False


def image(decode: Op | None = None, *, fill: int = 0, transform: bool = False) -> JointColumn:
    """Describes the image of a joint map.

    Args:
        decode: ``fs.decode_image(…)``, with any mode but ``"indices"``; default ``fs.decode_image()``.
        fill: The value of padding, 0 to 255, for every channel; default 0.
        transform: Adds ``<column>_transform``, float32 [rows, 3, 3]: a matrix for each sample that takes (x, y, 1) of
            the decoded image to (a, b, c), and (a / c, b / c) is the place in the result. Both are in pixels from the
            top left corner. Its inverse takes predicted boxes back; see ``docs/python/boxes.md``. The name must not be
            that of a column of the data set or of another result. Default False.
    """
    if not isinstance(transform, bool):
        raise ConfigError(f"transform must be True or False; got {transform!r}")
    column = _column("image", decode_image() if decode is None else decode, fill, is_mask=False)
    return replace(column, transform=transform)


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


def boxes(
    format: Literal["xyxy", "xywh", "cxcywh"],
    *,
    normalized: bool = False,
    min_size: float = 1.0,
    min_area: float = 1.0,
    min_visibility: float = 0.0,
    along: Iterable[str] = (),
) -> JointColumn:
    """Describes the bounding boxes of a joint map.

    The column has a list for each sample, which may be empty: of lists of 4 numbers, or a flat list of 4 numbers a
    box. The result is float32 [rows, boxes, 4], padded with zeros to the most boxes of the batch, and
    ``<column>_length`` (int64 [rows]) has their numbers.

    Boxes go through the ops as torchvision's ``BoundingBoxes`` do: after each op, a box is the smallest one around its
    corners, cut off at the image's edges. A box is dropped if it is smaller than the limits, if nothing of it is in the
    image after some op, if its centre is outside of the part that ``random_iou_crop`` cuts out, or if its width or
    height is negative. A list with NaN or another count of numbers is a bad sample.

    Args:
        format: What the 4 numbers are, in the column and in the result: ``"xyxy"`` is left, top, right, bottom;
            ``"xywh"`` left, top, width, height (COCO); ``"cxcywh"`` the centre's x and y, width, height (YOLO).
        normalized: Coordinates are shares of the image's width and height, in the column and in the result; default
            False: pixels of the decoded image, which ``decode_image(exif_orientation=True)`` turns first.
        min_size: The least width and height, in pixels of the result; default 1.
        min_area: The least area, in square pixels of the result; default 1.
        min_visibility: The least share of the box's area that is in the result, 0 to 1; default 0.
        along: Columns with one value for each box, such as ``("category_id", "iscrowd")``: flat lists of numbers or
            flags. Values of dropped boxes are dropped. Each result is int64, float32 or uint8 (flags) [rows, boxes],
            padded with zeros, with its ``<name>_length``.
    """
    one_of("format", format, ("xyxy", "xywh", "cxcywh"))
    if not isinstance(normalized, bool):
        raise ConfigError(f"normalized must be True or False; got {normalized!r}")
    described = {
        "kind": "boxes",
        "format": format,
        "normalized": normalized,
        "min_size": _limit("min_size", min_size),
        "min_area": _limit("min_area", min_area),
        "min_visibility": real("min_visibility", min_visibility, "0 to 1", lambda share: 0.0 <= share <= 1.0),
    }
    names = column_names("along", along)
    if len(set(names)) < len(names):
        raise ConfigError(f"along must name each column once; got {names!r}")
    return JointColumn(None, annotation=json.dumps(described), along=tuple(names))


def keypoints(flip_pairs: Iterable[tuple[int, int]] = ()) -> JointColumn:
    """Describes the keypoints of a joint map.

    The column has a list for each sample: of points (x, y) or (x, y, visibility), or a flat list of 3 numbers a point.
    A list of lists of 3·k numbers has k points for each object, as in COCO. The result is float32 [rows, points, 3]
    with x, y and visibility of all points, padded with zeros, and ``<column>_length`` (int64 [rows]) has their numbers.

    Points go through the ops as torchvision's ``KeyPoints`` do: a horizontal flip takes x to width − 1 − x. No point is
    dropped. A point that is outside of the image, at first or after some op, gets visibility 0; that of other points
    (x, y) is 1. A list with NaN or another count of numbers is a bad sample.

    Args:
        flip_pairs: Points that a horizontal flip exchanges, such as left and right eye: pairs of indices in the
            sample's list, or in each object's; default none.
    """
    given = list(flip_pairs)
    pairs = [tuple(pair) for pair in given if isinstance(pair, Iterable)]
    if len(pairs) < len(given) or any(len(pair) != 2 for pair in pairs):
        raise ConfigError(f"flip_pairs must be pairs of indices of points; got {given!r}")
    indices = [[whole("an index of flip_pairs", index) for index in pair] for pair in pairs]
    return JointColumn(None, annotation=json.dumps({"kind": "keypoints", "flip_pairs": indices}))


def _limit(name: str, value: float) -> float:
    return real(name, value, "a finite number >= 0", lambda number: 0.0 <= number < math.inf)


def _column(kind: str, decode: Op, fill: int, *, is_mask: bool) -> JointColumn:
    if not isinstance(decode, Op) or _fields(decode)["op"] != "decode_image":
        raise ConfigError(f"{kind} must be given fs.decode_image(…); got {decode!r}")
    if (_fields(decode).get("mode") == "indices") != is_mask:
        need = 'mode="indices"' if is_mask else 'another mode than "indices"'
        raise ConfigError(f"{kind} must be given fs.decode_image with {need}; got {decode!r}")
    fill = whole("fill", fill, 0)
    if fill > 255:
        raise ConfigError(f"fill must be at most 255; got {fill}")
    return JointColumn(decode, fill)


def joint_steps(
    columns: Mapping[str, JointColumn], ops: Iterable[Op | Iterable[Op]], key: str | None
) -> list[tuple[str, dict[str, Any]]]:
    """Returns the methods of the native pipeline that map the columns jointly, with their arguments."""
    if not columns:
        raise ConfigError("a joint map must have at least one column; got {}")
    for name, column in columns.items():
        if not isinstance(column, JointColumn):
            raise ConfigError(
                f"column {text('column', name)!r} of a joint map must be fs.image(…), fs.mask(…), fs.boxes(…) or "
                f"fs.keypoints(…); got {column!r}"
            )
    if all(column.decode is None for column in columns.values()):
        raise ConfigError(
            f"boxes and keypoints follow an image; give the joint map of {', '.join(columns)} a column with fs.image(…)"
        )
    shared, joint = list(flatten(ops)), "+".join(columns)
    check_box_crop(shared, columns.values())
    followed = "[" + ", ".join(op.to_json() for op in shared) + "]"
    steps: list[tuple[str, dict[str, Any]]] = []
    for name, column in columns.items():
        mapped = {"column": name, "key": key, "joint": joint}
        if column.decode is not None:
            chain = chain_json([column.decode, *(_padded(op, column.fill) for op in shared)])
            steps.append(("map", {**mapped, "output": name, "ops": chain, "pad_value": 0.0}))
        elif column.annotation is not None:
            _feedstock.check_annotation(column.annotation, followed)
            steps.append(("annotate", {**mapped, "annotation": column.annotation, "ops": followed}))
            steps.extend(("along", {"column": along, "boxes": name}) for along in column.along)
        if column.transform:
            output = f"{name}_transform"
            _feedstock.check_annotation(_TRANSFORM, followed)
            steps.append(
                ("annotate", {**mapped, "annotation": _TRANSFORM, "ops": followed, "output": output})
            )
    results = [arguments.get("output", arguments["column"]) for _, arguments in steps]
    for name in results:
        if results.count(name) > 1:
            raise ConfigError(
                f"column {name!r} is in the joint map more than once; name it once, mapped or along boxes"
            )
    return steps


def check_box_crop(ops: Iterable[Op], columns: Iterable[JointColumn] = ()) -> None:
    """Refuses an op that crops by boxes where no column of the map has boxes."""
    described = (column.annotation for column in columns)
    has_boxes = any(each is not None and json.loads(each)["kind"] == "boxes" for each in described)
    if not has_boxes and any(op.name == "random_iou_crop" for op in ops):
        raise ConfigError(
            "random_iou_crop crops by boxes; map the image jointly with its boxes, and add fs.boxes(…) of a column: "
            'map({"image": fs.image(), "boxes": fs.boxes("xyxy")}, …)'
        )


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
