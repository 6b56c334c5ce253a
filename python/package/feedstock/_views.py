"""Several views of one image, which is decoded once: the crops that self-supervised training compares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from feedstock._check import text, whole
from feedstock._joint import check_box_crop
from feedstock.errors import ConfigError
from feedstock.ops import Op
from feedstock.ops._op import chain_json, flatten

#: The most images of one name.
_MOST_IMAGES = 1024


@dataclass(frozen=True)
class Views:
    """Views of an image, made by ``fs.views``.

    Each has a name, the number of images (None: one, without an axis of views), and the ops after the decoder.
    """

    views: tuple[tuple[str, int | None, tuple[Op, ...]], ...]


def views(views: Mapping[str, Op | Iterable[Any]]) -> Views:
    """Describes several views of an image, which is decoded once. It comes after ``fs.decode_image()`` in ``map``.

    Each name becomes a tensor of the batch. A view draws its random numbers by its name, independently of other views:
    image i (from 0) of the view ``name`` draws as a map with ``key="name/i"``. With ``fs.decode_image(scaled=False)``,
    it has the bytes of that map. By default, large JPEGs are decoded at a fraction of their size, the finest that one
    of the views needs. An image that cannot be decoded, or is too small for one view, is one bad sample.

    Args:
        views: By name, the ops after the decoder: one op or a list of ops, which gives [rows, height, width, 3]; or
            ``(n, ops)`` for n images with the same ops and other random numbers, [rows, n, height, width, 3], n from 1
            to 1024. A name must not be that of a column of the data set or of another map.

    Raises:
        ConfigError: An argument is not valid. Ops are checked by ``map``, and names of columns when a loader is made.

    Example:
        >>> crop = lambda size: [fs.random_resized_crop(size), fs.horizontal_flip()]
        >>> crops = fs.views({"global": crop(32), "local": (8, crop(16))})
        >>> pipeline = fs.Dataset(images).map("image", fs.decode_image(), crops).batch(2)
        >>> batch = next(iter(pipeline.loader()))
        >>> batch["global"].shape, batch["local"].shape
        ((2, 32, 32, 3), (2, 8, 16, 16, 3))
    """
    if not isinstance(views, Mapping) or not views:
        raise ConfigError(f"views must be a dict with a chain of ops for each name; got {views!r}")
    return Views(tuple(_view(name, given) for name, given in views.items()))


def _view(name: str, given: Any) -> tuple[str, int | None, tuple[Op, ...]]:
    if not text("the name of a view", name):
        raise ConfigError("the name of a view must not be empty")
    count, ops = None, given
    if isinstance(given, tuple) and given and not isinstance(given[0], (Op, list, tuple)):
        if len(given) != 2:
            raise ConfigError(f"view {name!r} must be ops, or (number of images, ops); got {given!r}")
        count, ops = whole(f"the number of images of view {name!r}", given[0], 1), given[1]
        if count > _MOST_IMAGES:
            raise ConfigError(
                f"the number of images of view {name!r} must be at most {_MOST_IMAGES}; got {count}"
            )
    chain = tuple(flatten([ops]))
    for op in chain:
        if op.name.startswith("decode_"):
            raise ConfigError(
                f"view {name!r} has {op!r}; the image is decoded once, so put the decoder before fs.views"
            )
    return name, count, chain


def split(ops: Iterable[Any]) -> tuple[list[Any], Views | None]:
    """Returns the ops of a map without the views at their end, and the views.

    Raises:
        ConfigError: Ops come after views, or there are views twice.
    """
    given = list(_items(ops))
    found = [one for one in given if isinstance(one, Views)]
    if not found:
        return given, None
    if len(found) > 1 or given[-1] is not found[0]:
        raise ConfigError("fs.views must come last in a map, and once; put the ops after it into its chains")
    return given[:-1], found[0]


def _items(ops: Iterable[Any]) -> Iterable[Any]:
    for one in ops:
        if isinstance(one, (list, tuple)):
            yield from _items(one)
        else:
            yield one


def view_step(column: str, before: list[Any], views: Views) -> dict[str, Any]:
    """Returns the arguments of the native pipeline's method ``views``.

    Raises:
        ConfigError: There is not exactly ``fs.decode_image`` before the views, or a chain is not valid.
    """
    decode = list(flatten(before))
    if [op.name for op in decode] != ["decode_image"]:
        raise ConfigError(
            f"fs.views comes after fs.decode_image(…) alone; got {decode!r}. Put other ops into each view's chain"
        )
    described = []
    for name, count, ops in views.views:
        try:
            check_box_crop(ops)
            chain_json([*decode, *ops])
        except ConfigError as error:
            raise ConfigError(f"view {name!r}: {error}") from None
        described.append((name, count, "[" + ", ".join(op.to_json() for op in ops) + "]"))
    return {"column": column, "decode": "[" + decode[0].to_json() + "]", "views": described}
