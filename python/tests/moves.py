"""What ops do to boxes, points and Pillow's images by torchvision v2, with the parameters that feedstock draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from draws import Draws

import feedstock as fs

F = pytest.importorskip("torchvision.transforms.v2").functional

#: What an op does to boxes and points, as calls of torchvision's functional, with the op's draws.
Reference = Callable[[Any, Draws], Any]


def crop_and_resize(inpt: Any, draws: Draws) -> Any:
    height, width = F.get_size(inpt)
    for _ in range(10):
        area = height * width * draws.uniform(0.2, 1.0)
        ratio = math.exp(draws.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = draws.below(height - h + 1), draws.below(width - w + 1)
            return F.resized_crop(inpt, top, left, h, w, [64, 72])
    raise AssertionError("no crop fits")


def crop(inpt: Any, draws: Draws) -> Any:
    inpt = F.pad(inpt, [9])
    height, width = F.get_size(inpt)
    top, left = draws.below(height - 40 + 1), draws.below(width - 50 + 1)
    return F.crop(inpt, top, left, 40, 50)


def jitter(inpt: Any, draws: Draws) -> Any:
    height, width = F.get_size(inpt)
    scale = draws.uniform(0.4, 1.5)
    factor = min(80 / height, 70 / width) * scale
    return F.resize(inpt, [int(height * factor), int(width * factor)])


def zoom_out(inpt: Any, draws: Draws) -> Any:
    if not draws.chance(0.7):
        return inpt
    height, width = F.get_size(inpt)
    factor = draws.uniform(1.0, 2.5)
    right, below = int(width * factor) - width, int(height * factor) - height
    left = int(right * draws.uniform(0, 1))
    top = int(below * draws.uniform(0, 1))
    return F.pad(inpt, [left, top, right - left, below - top])


def pad_to(inpt: Any, _: Draws) -> Any:
    height, width = F.get_size(inpt)
    return F.pad(inpt, [0, 0, 180 - width, 170 - height])


def affine(inpt: Any, draws: Draws) -> Any:
    height, width = F.get_size(inpt)
    angle = draws.uniform(-40, 40)
    translate = [round(draws.uniform(-0.1 * side, 0.1 * side)) for side in (width, height)]
    scale = draws.uniform(0.7, 1.3)
    shear = [draws.uniform(-10, 10), draws.uniform(-5, 8)]
    return F.affine(inpt, angle, translate, scale, shear)


def perspective(inpt: Any, draws: Draws) -> Any:
    assert draws.chance(1.0)
    height, width = F.get_size(inpt)
    bounds = [int(0.4 * (side // 2)) + 1 for side in (width, height)]
    corners = []
    for far in ((False, False), (True, False), (True, True), (False, True)):
        place = zip(far, (width, height), bounds, strict=True)
        corners.append(
            [(side - bound if is_far else 0) + draws.below(bound) for is_far, side, bound in place]
        )
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    return F.perspective(inpt, start, corners)


def flipped(flip: Callable[[Any], Any], probability: float) -> Reference:
    return lambda inpt, draws: flip(inpt) if draws.chance(probability) else inpt


STEPS: dict[str, tuple[fs.Op, Reference]] = {
    "random_resized_crop": (fs.random_resized_crop((64, 72), scale=(0.2, 1.0)), crop_and_resize),
    "horizontal_flip": (fs.horizontal_flip(), flipped(F.horizontal_flip, 0.5)),
    "vertical_flip": (fs.vertical_flip(0.7), flipped(F.vertical_flip, 0.7)),
    "pad": (fs.pad((3, 5)), lambda inpt, _: F.pad(inpt, [3, 5])),
    "random_crop": (fs.random_crop((40, 50), padding=9), crop),
    "center_crop": (fs.center_crop((60, 64)), lambda inpt, _: F.center_crop(inpt, [60, 64])),
    "resize": (fs.resize((70, 40)), lambda inpt, _: F.resize(inpt, [70, 40])),
    "shorter": (fs.resize(50), lambda inpt, _: F.resize(inpt, [50])),
    "limited": (fs.resize(50, max_size=70), lambda inpt, _: F.resize(inpt, [50], max_size=70)),
    "scale_jitter": (fs.scale_jitter((80, 70), scale_range=(0.4, 1.5)), jitter),
    "random_zoom_out": (fs.random_zoom_out(0.7, side_range=(1.0, 2.5)), zoom_out),
    "pad_to": (fs.pad_to((170, 180)), pad_to),
    "rotate": (fs.rotate(45), lambda inpt, draws: F.rotate(inpt, draws.uniform(-45, 45))),
    "rotate around": (
        fs.rotate((80, 100), center=(10, 20)),
        lambda inpt, draws: F.rotate(inpt, draws.uniform(80, 100), center=[10, 20]),
    ),
    "affine": (
        fs.affine(40, translate=(0.1, 0.1), scale=(0.7, 1.3), shear=(-10, 10, -5, 8)),
        affine,
    ),
    "perspective": (fs.perspective(0.4, 1.0), perspective),
    "color_jitter": (fs.color_jitter(0.4), lambda inpt, _: inpt),
    "random_erasing": (fs.random_erasing(1.0), lambda inpt, _: inpt),
}
