"""``rotate(expand=True)`` of images, masks, boxes and keypoints, against Pillow and torchvision v2."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from boxed import (
    COLUMNS,
    SAMPLES,
    SEED,
    TOLERANCE,
    corners_of,
    image_of,
    labels_of,
    points_of,
    rows,
    size_of,
    write,
)
from draws import Draws
from PIL import Image
from served import worker

import feedstock as fs

torch = pytest.importorskip("torch")
tv_tensors = pytest.importorskip("torchvision.tv_tensors")
F = pytest.importorskip("torchvision.transforms.v2").functional

ANGLES = (-80, 110)
CANVAS = 150


def mask_of(sample: int) -> Image.Image:
    height, width = size_of(sample)
    return Image.fromarray(np.random.default_rng(sample).integers(0, 19, (height, width), dtype=np.uint8))


def encoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def detection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    masks = pa.array([encoded(mask_of(sample)) for sample in range(SAMPLES)], pa.binary())
    return write(tmp_path_factory.mktemp("detection"), mask=masks)


def angle_of(sample: dict[str, np.ndarray]) -> float:
    return Draws(SEED, 0, int(sample["sample_ids"]), 1).uniform(*ANGLES)


def on_canvas(image: Image.Image, fill: int) -> np.ndarray:
    """Returns the image at the top left of a square canvas."""
    pixels = np.asarray(image)
    canvas = np.full((CANVAS, CANVAS, *pixels.shape[2:]), fill, np.uint8)
    canvas[: pixels.shape[0], : pixels.shape[1]] = pixels
    return canvas


@pytest.mark.parametrize(("interpolation", "levels"), [("nearest", 0), ("bilinear", 1), ("bicubic", 1)])
def test_images_and_masks_are_pillows(interpolation: str, levels: int, detection: Path) -> None:
    """Size and pixels; a wrong size would show as padding."""
    columns = {"image": fs.image(fill=3), "mask": fs.mask(fill=77)}
    ops = [fs.rotate(ANGLES, interpolation=interpolation, expand=True), fs.pad_to(CANVAS)]  # type: ignore[arg-type]
    for identity, sample in rows(fs.Dataset(detection).map(columns, ops)).items():
        angle, form = angle_of(sample), Image.Resampling[interpolation.upper()]
        image = Image.open(io.BytesIO(image_of(identity))).rotate(
            angle, form, expand=True, fillcolor=(3, 3, 3)
        )
        mask = mask_of(identity).rotate(angle, Image.Resampling.NEAREST, expand=True, fillcolor=77)
        assert np.abs(sample["image"].astype(int) - on_canvas(image, 3)).max() <= levels
        assert (sample["mask"] == on_canvas(mask, 77)).all()


def test_boxes_and_points_are_torchvisions_in_the_middle_of_pillows_canvas(detection: Path) -> None:
    """torchvision puts the turned image at (0, 0). The pixels are in the middle of a canvas of whole pixels."""
    columns = {**COLUMNS, "points": fs.keypoints()}
    compared = 0
    found = rows(fs.Dataset(detection).map(columns, fs.rotate(ANGLES, expand=True), fs.pad_to(CANVAS)))
    for identity, sample in found.items():
        size, angle, given = size_of(identity), angle_of(sample), corners_of(identity)
        turned = Image.new("L", size[::-1]).rotate(angle, expand=True).size
        cos, sin = abs(math.cos(math.radians(angle))), abs(math.sin(math.radians(angle)))
        needed = np.array([size[1] * cos + size[0] * sin, size[1] * sin + size[0] * cos])
        shift = (np.array(turned) - needed) / 2
        assert (shift >= 0).all()
        assert (shift < 1).all()
        points = tv_tensors.KeyPoints(points_of(identity)[:, :2], canvas_size=size, dtype=torch.float64)
        expected = F.rotate(points, angle, expand=True).numpy() + shift
        np.testing.assert_allclose(sample["points"][:, :2], expected, rtol=0, atol=TOLERANCE)
        boxes = tv_tensors.BoundingBoxes(given, format="XYXY", canvas_size=size, dtype=torch.float64)
        expected = F.rotate(boxes, angle, expand=True).numpy() + np.tile(shift, 2)
        is_inside = (given[:, :2] >= 0).all(axis=1) & (given[:, 2:] <= size[::-1]).all(axis=1)
        for label, box in zip(sample["category"], sample["boxes"], strict=True):
            index = labels_of(identity).index(int(label))
            # torchvision cuts off at the turned image, and boxes that begin outside end up to a pixel elsewhere.
            np.testing.assert_allclose(box, expected[index], atol=TOLERANCE if is_inside[index] else 1.0)
            compared += is_inside[index]
    assert compared > SAMPLES / 2


def test_quarter_turns_move_whole_pixels(detection: Path) -> None:
    columns = {"image": fs.image(), "points": fs.keypoints()}
    ops = [fs.rotate((90, 90), expand=True), fs.pad_to(CANVAS)]
    for identity, sample in rows(fs.Dataset(detection).map(columns, ops)).items():
        image = Image.open(io.BytesIO(image_of(identity)))
        assert (sample["image"] == on_canvas(image.transpose(Image.Transpose.ROTATE_90), 0)).all()
        x, y = points_of(identity)[:, :2].T
        expected = np.stack([y, size_of(identity)[1] - x], axis=1)
        np.testing.assert_allclose(sample["points"][:, :2], expected, atol=TOLERANCE)
        height, width = size_of(identity)
        is_inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        visibilities = np.where(is_inside, points_of(identity)[:, 2], 0)
        assert (sample["points"][:, 2] == visibilities).all()


def test_a_turn_hides_no_point_on_an_edge(tmp_path: Path) -> None:
    """(0, y) goes to (y, width), which is not a place of a pixel."""
    given = np.array([[0, 10, 2], [10, 0, 1], [0, 0, 2]], np.float32)
    points = pa.array([given.ravel()] * SAMPLES, pa.list_(pa.float32()))
    data = fs.Dataset(write(tmp_path / "edges", points=points))
    columns = {"image": fs.image(), "points": fs.keypoints()}
    ops = [fs.rotate((90, 90), expand=True), fs.pad_to(CANVAS)]
    for identity, sample in rows(data.map(columns, ops)).items():
        width = size_of(identity)[1]
        assert sample["points"].tolist() == [[10, width, 2], [0, width - 10, 1], [0, width, 2]]


@pytest.mark.parametrize("size", [(30, 81), (81, 30), (30, 80), (31, 81)], ids=str)
def test_quarter_turns_are_pillows_for_sides_of_any_parity(size: tuple[int, int], tmp_path: Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (*size, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    pq.write_table(pa.table({"image": pa.array([encoded(image)], pa.binary())}), tmp_path / "a.parquet")
    turns = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}
    for angle, turn in turns.items():
        ops = [fs.decode_image(), fs.rotate((angle, angle), expand=True), fs.pad_to(CANVAS)]
        loader = fs.Dataset(tmp_path).map("image", ops).batch(1).epochs(1).loader(output="numpy")
        found = [np.array(batch["image"][0]) for batch in loader]
        assert len(found) == 1
        assert (found[0] == on_canvas(image.transpose(turn), 0)).all()


def test_a_resize_follows_and_workers_make_the_same_bytes(detection: Path) -> None:
    ops = [fs.horizontal_flip(), fs.rotate(30, expand=True), fs.random_resized_crop(48), fs.to_f32()]
    pipeline = fs.Dataset(detection).map({**COLUMNS, "mask": fs.mask()}, ops)
    local = rows(pipeline)
    serving = worker(detection)
    for identity, sample in rows(pipeline, workers=serving.address).items():
        assert sample["image"].shape == (48, 48, 3)
        for name, value in sample.items():
            assert (value == local[identity][name]).all()


def test_mistakes_are_named(detection: Path) -> None:
    data = fs.Dataset(detection)
    with pytest.raises(fs.ConfigError, match="the chain has no fixed output size"):
        data.map("image", fs.decode_image(), fs.resize((8, 8)), fs.rotate(9, expand=True))
    with pytest.raises(
        fs.ConfigError, match=r"op 1 \(rotate\): expand turns around the middle; leave center out"
    ):
        data.map("image", fs.decode_image(), fs.rotate(9, center=(1, 2), expand=True), fs.resize((8, 8)))
    with pytest.raises(fs.ConfigError, match="rotate.*changes the image's size"):
        data.map("image", fs.decode_image(), fs.random_apply(fs.rotate(9, expand=True)), fs.resize((8, 8)))
