"""The first images of a pipeline as a page, for notebooks."""

from __future__ import annotations

import html
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from feedstock._description import Description
from feedstock._reports import SkipReport
from feedstock._table import as_image, class_of, shown
from feedstock.errors import ConfigError

#: How the axes of an image are called.
_IMAGES = ("hwc", "chw", "hw")


class Preview:
    """Samples as the model gets them. An HTML page in notebooks; ``save`` writes it to a file."""

    def __init__(self, title: str, tiles: list[str]) -> None:
        self._title = title
        self._tiles = tiles

    def __len__(self) -> int:
        """Returns the number of samples."""
        return len(self._tiles)

    def __repr__(self) -> str:
        return f"Preview({self._title}); save(path) writes it as HTML"

    def _repr_html_(self) -> str:
        style = "display:flex;flex-wrap:wrap;gap:.8rem"
        return f'<p>{html.escape(self._title)}</p><div style="{style}">{"".join(self._tiles)}</div>'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page with its images to one HTML file."""
        with open(path, "w", encoding="utf-8") as page:
            page.write(
                f'<!doctype html>\n<html lang="en"><meta charset="utf-8">\n{self._repr_html_()}</html>\n'
            )


class Previewed(Protocol):
    """A loader of single samples."""

    @property
    def epoch(self) -> int: ...

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...

    def skip_report(self) -> SkipReport: ...


def image_layouts(described: Description) -> dict[str, str]:
    """Returns the meaning of the axes of each column of images that a map makes.

    Raises:
        ConfigError: There is none, and no column of encoded bytes either.
    """
    layouts = {one.output: one.layout for one in described.maps if one.layout in _IMAGES}
    if not layouts and not any(one.column_type == "BinaryView" for one in described.columns):
        raise ConfigError(
            "show needs a column of images: map one to images of shape [height, width, channels], "
            'for example with .map("image", fs.decode_image())'
        )
    return layouts


def preview(
    uri: str,
    layouts: Mapping[str, str],
    names: Mapping[str, list[str] | None],
    loader: Previewed,
    samples: int,
) -> Preview:
    """Shows the images of a loader's first samples; ``names`` has the class names of columns of labels."""
    epoch = loader.epoch
    tiles: list[str] = []
    for batch in loader:
        tiles.append(_tile(batch, layouts, names, _reason(batch, loader)))
        if len(tiles) == samples:
            break
    return Preview(f"{uri}: the first {len(tiles)} samples of epoch {epoch}", tiles)


def _reason(batch: Mapping[str, Any], loader: Previewed) -> str | None:
    """Returns why the batch's only sample was skipped; None if it was not."""
    if batch["valid"][0]:
        return None
    skipped = loader.skip_report()["samples"]
    reasons = (one["reason"] for one in skipped if one["sample_id"] == batch["sample_ids"][0])
    return next(reasons, "the sample cannot be used")


def _tile(
    batch: Mapping[str, Any],
    layouts: Mapping[str, str],
    names: Mapping[str, list[str] | None],
    reason: str | None,
) -> str:
    images, facts = [], [f"sample {batch['sample_ids'][0]}"]
    for name, values in batch.items():
        if name in ("sample_ids", "valid"):
            continue
        is_list = name in layouts and f"{name}_length" in batch
        value = values if is_list else values[0]  # all images of a list are of this sample
        if name in layouts:
            views = value if is_list or value.ndim == 4 else [value]
            images += [] if reason is not None else [_shown_image(name, one, layouts[name]) for one in views]
        elif isinstance(value, bytes):
            image = as_image(value)
            images += [] if image is None else [image]
        elif not isinstance(value, (list, dict)) and np.ndim(value) == 0:
            value = value.item() if isinstance(value, np.generic) else value
            known = names.get(name)
            facts.append(f"{name}: {shown(value) if known is None else class_of(value, known)}")
    if reason is not None:
        images.append(
            f'<div style="border:1px solid #b00;padding:.5rem;width:13rem">{html.escape(reason)}</div>'
        )
    caption = "<br>".join(map(html.escape, facts))
    row = f'<div style="display:flex;gap:.3rem">{"".join(images)}</div>'
    return (
        f'<figure style="margin:0">{row}<figcaption style="font-size:.8rem">{caption}</figcaption></figure>'
    )


def _shown_image(name: str, value: np.ndarray[Any, Any], layout: str) -> str:
    pixels = _pixels(value, layout)
    if pixels is None:
        return f"<div>{html.escape(name)}: {value.dtype} {list(value.shape)}</div>"
    image = as_image(png(pixels))
    assert image is not None
    return image


def _pixels(value: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any] | None:
    """Returns an image as uint8 [height, width, 3 or 4]; None if a function of the user changed its shape.

    Values of floats are scaled so that the least becomes 0 and the greatest 255. Each class of a mask has another
    color; class 0 is black.
    """
    if layout == "hw" and value.ndim == 2:
        factors = np.array([37, 91, 151], np.uint8)  # odd, so that classes with one color are 256 apart
        return value.astype(np.uint8)[:, :, np.newaxis] * factors
    if layout == "chw":
        value = np.moveaxis(value, 0, -1) if value.ndim == 3 else value
    if value.ndim != 3 or value.shape[-1] not in (1, 3, 4):
        return None
    if value.dtype == np.uint16:
        value = (value >> 8).astype(np.uint8)
    elif value.dtype != np.uint8:
        real = value.astype(np.float64)
        least, most = (float(real.min()), float(real.max())) if real.size else (0.0, 0.0)
        scale = 255.0 / (most - least) if most > least else 0.0
        value = np.nan_to_num((real - least) * scale + 0.5).clip(0, 255).astype(np.uint8)
    return np.repeat(value, 3, axis=-1) if value.shape[-1] == 1 else value


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Encodes pixels, uint8 [height, width, 3 or 4], as a PNG."""
    height, width, channels = pixels.shape
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each line begins with its filter: none
    lines[:, 1:] = np.ascontiguousarray(pixels).reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body
