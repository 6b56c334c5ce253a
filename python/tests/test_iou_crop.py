"""``random_iou_crop`` against torchvision v2 with the same random numbers, and by its properties."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Literal

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
    rows_of_rank,
    size_of,
    write,
)
from draws import Draws
from moves import STEPS
from PIL import Image
from served import worker

import feedstock as fs

torch = pytest.importorskip("torch")
tv_tensors = pytest.importorskip("torchvision.tv_tensors")
v2 = pytest.importorskip("torchvision.transforms.v2")
F = v2.functional

BEFORE = ["horizontal_flip", "random_zoom_out", "shorter"]
CHAIN = [*(STEPS[step][0] for step in BEFORE), fs.random_iou_crop(), fs.resize((64, 72))]


@pytest.fixture(scope="module")
def detection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("detection"))


def drawn_crop(transform: Any, boxes: Any, draws: Draws, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns the crop that torchvision draws with feedstock's random numbers."""

    def rand(count: int) -> Any:
        return torch.tensor([draws.uniform(0.0, 1.0) for _ in range(count)], dtype=torch.float64)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "rand", rand)
        patch.setattr(torch, "randint", lambda low, high, size: torch.tensor([draws.below(high)]))
        params: dict[str, Any] = transform.make_params([boxes])
    return params


def inside(boxes: Any, kept: Any) -> tuple[Any, Any]:
    """Drops boxes that torchvision keeps as lines on the edge."""
    left = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    return tv_tensors.wrap(boxes[left], like=boxes), kept[left]


Form = Literal["xyxy", "xywh", "cxcywh"]


def in_form(sample: int, form: Form, *, normalized: bool) -> list[list[float]]:
    """Returns the boxes of a sample in a form of the column."""
    boxes = torch.from_numpy(corners_of(sample)).double()
    boxes = F.convert_bounding_box_format(boxes, old_format="xyxy", new_format=form)
    height, width = size_of(sample) if normalized else (1, 1)
    found: list[list[float]] = (boxes / torch.tensor([width, height, width, height])).tolist()
    return found


@pytest.mark.parametrize(
    ("form", "normalized"), [("xyxy", False), ("xywh", False), ("cxcywh", False), ("cxcywh", True)]
)
def test_crops_are_torchvisions(
    form: Form, normalized: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crop is drawn for the boxes after a flip, a zoom and a resize, and all columns follow it."""
    lists = [in_form(sample, form, normalized=normalized) for sample in range(SAMPLES)]
    data = fs.Dataset(write(tmp_path / "forms", boxes=pa.array(lists, pa.list_(pa.list_(pa.float64())))))
    boxes_as = fs.boxes(form, normalized=normalized, along=("category", "crowd"))
    columns = {**COLUMNS, "boxes": boxes_as, "points": fs.keypoints()}
    transform = v2.RandomIoUCrop()
    parts = dropped = 0
    for identity, sample in rows(data.map(columns, CHAIN)).items():

        def draws(index: int, sample: dict[str, np.ndarray] = sample) -> Draws:
            return Draws(SEED, 0, int(sample["sample_ids"]), index)

        size, kept = size_of(identity), torch.arange(identity % 6)
        boxes = tv_tensors.BoundingBoxes(
            corners_of(identity), format="XYXY", canvas_size=size, dtype=torch.float64
        )
        points = tv_tensors.KeyPoints(points_of(identity)[:, :2], canvas_size=size, dtype=torch.float64)
        image = Image.open(io.BytesIO(image_of(identity)))
        for index, step in enumerate(BEFORE):
            boxes, points, image = (STEPS[step][1](inpt, draws(index + 1)) for inpt in (boxes, points, image))
            boxes, kept = inside(boxes, kept)
        params = drawn_crop(transform, boxes, draws(4), monkeypatch)
        boxes, points, image = (
            F.resize(transform.transform(inpt, params), [64, 72]) for inpt in (boxes, points, image)
        )
        parts += bool(params)
        dropped += len(params) and int((~params["is_within_crop_area"]).sum())
        boxes, kept = inside(boxes, kept)
        boxes, valid = F.sanitize_bounding_boxes(F.clamp_bounding_boxes(boxes), min_size=1.0, min_area=1.0)
        assert sample["category"].tolist() == [labels_of(identity)[index] for index in kept[valid]]
        found = torch.from_numpy(sample["boxes"]).double()
        found *= torch.tensor([72, 64, 72, 64] if normalized else [1, 1, 1, 1])
        found = F.convert_bounding_box_format(found, old_format=form, new_format="xyxy")
        np.testing.assert_allclose(found.numpy(), boxes.numpy(), rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(sample["points"][:, :2], points.numpy(), rtol=0, atol=TOLERANCE)
        # Two resizes, each within one level.
        assert np.abs(sample["image"].astype(int) - np.asarray(image).astype(int)).max() <= 2
    assert parts > SAMPLES / 3
    assert dropped > 5


def test_samples_without_boxes_stay_whole(detection: Path) -> None:
    pipeline = fs.Dataset(detection).map(COLUMNS, fs.random_iou_crop(), fs.pad_to(120))
    plain = rows(fs.Dataset(detection).map(COLUMNS, fs.pad_to(120)))
    for identity, sample in rows(pipeline).items():
        if identity % 6 == 0:
            assert (sample["image"] == plain[identity]["image"]).all()
            assert (sample["points"] == plain[identity]["points"]).all()


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def ious(corners: np.ndarray, part: np.ndarray) -> np.ndarray:
    shared = np.minimum(corners[:, 2:], part[2:]) - np.maximum(corners[:, :2], part[:2])
    shared = shared.clip(0).prod(axis=1)
    areas = (corners[:, 2:] - corners[:, :2]).prod(axis=1)
    return shared / (areas + (part[2:] - part[:2]).prod() - shared)


def test_a_part_overlaps_a_box_and_masks_follow_it(tmp_path: Path) -> None:
    """One mask has the boxes painted, the other one is 1 within the image: it shows the size of the part."""
    painted, frames, lists = [], [], []
    for sample in range(SAMPLES):
        height, width = size_of(sample)
        generator = np.random.default_rng(sample)
        left, top = (generator.integers(0, side // 3, 2) for side in (width, height))
        boxes = np.stack([left, top, left + width // 3, top + height // 2], axis=1)
        mask = np.zeros((height, width), np.uint8)
        for index, (x, y, right, bottom) in enumerate(boxes):
            mask[y:bottom, x:right] |= 1 << index
        painted.append(png(mask))
        frames.append(png(np.ones((height, width), np.uint8)))
        lists.append(boxes.tolist())
    columns = {
        "boxes": pa.array(lists, pa.list_(pa.list_(pa.int64()))),
        "category": pa.array([[0, 1]] * SAMPLES, pa.list_(pa.int64())),
        "painted": pa.array(painted, pa.binary()),
        "frame": pa.array(frames, pa.binary()),
    }
    data = fs.Dataset(write(tmp_path / "masks", **columns, crowd=None))
    crop = fs.random_iou_crop(
        min_scale=0.4, max_scale=0.9, min_aspect_ratio=0.8, max_aspect_ratio=1.6, sampler_options=[0.35]
    )
    joint = {
        "painted": fs.mask(fill=0),
        "image": fs.image(transform=True),
        "frame": fs.mask(fill=0),
        "boxes": fs.boxes("xyxy", along=["category"]),
    }
    outside = 0
    for identity, sample in rows(data.map(joint, crop, fs.pad_to(120))).items():
        x, y = -sample["image_transform"][:2, 2]
        height, width = (int(sample["frame"].max(axis=axis).sum()) for axis in (1, 0))
        scale = np.array([width, height]) / size_of(identity)[::-1]
        assert (scale > 0.4 - 1 / 60).all()
        assert (scale <= 0.9).all()
        assert 0.8 <= width / height <= 1.6
        given = np.array(lists[identity])
        part = np.array([x, y, x + width, y + height])
        assert ious(given, part).max() >= 0.35
        middles = (given[:, :2] + given[:, 2:]) / 2
        kept = ((part[:2] < middles) & (middles < part[2:])).all(axis=1)
        assert sample["category"].tolist() == np.flatnonzero(kept).tolist()
        outside += int((~kept).sum())
        for index, (left, top, right, bottom) in zip(sample["category"], sample["boxes"], strict=True):
            rows_of_box, columns_of_box = np.nonzero(sample["painted"] & (1 << index))
            assert [left, top] == [columns_of_box.min(), rows_of_box.min()]
            assert [right, bottom] == [columns_of_box.max() + 1, rows_of_box.max() + 1]
    assert outside > 3


def test_ranks_and_workers_make_the_same_bytes(detection: Path) -> None:
    pipeline = fs.Dataset(detection).map(COLUMNS, CHAIN)
    local = rows(pipeline)
    ranks: dict[int, dict[str, np.ndarray]] = {}
    for rank in range(2):
        ranks.update(rows_of_rank(pipeline, rank=rank, world_size=2))
    assert len(ranks) == 32  # two steps of 16; the rest is dropped
    serving = worker(detection)
    for found in (ranks, rows(pipeline, workers=serving.address)):
        for identity, sample in found.items():
            for name, value in sample.items():
                assert (value == local[identity][name]).all()


def test_the_first_boxes_draw_the_crop(tmp_path: Path) -> None:
    """Other boxes of the joint map follow it, and do not change it."""
    others = pa.array([[[0.0, 0.0, 9.0, 9.0]]] * SAMPLES, pa.list_(pa.list_(pa.float32())))
    data = fs.Dataset(write(tmp_path / "two", others=others))
    both = rows(data.map({**COLUMNS, "others": fs.boxes("xyxy")}, CHAIN))
    first = rows(data.map(COLUMNS, CHAIN))
    alone = rows(data.map({"others": fs.boxes("xyxy"), "image": fs.image()}, CHAIN))
    differ = 0
    for identity, sample in both.items():
        for name in ("image", "boxes", "points"):
            assert (sample[name] == first[identity][name]).all()
        differ += (sample["image"] != alone[identity]["image"]).any()
    assert differ > SAMPLES / 2


def test_columns_come_in_any_order(detection: Path) -> None:
    data = fs.Dataset(detection)
    backwards = rows(data.map(dict(reversed(COLUMNS.items())), CHAIN))
    for identity, sample in rows(data.map(COLUMNS, CHAIN)).items():
        for name, value in sample.items():
            assert (value == backwards[identity][name]).all()


def test_large_turned_jpegs_are_cropped_where_their_boxes_are(tmp_path: Path) -> None:
    """JPEGs whose EXIF turns them, decoded at a fraction of their size: each shows its one box, in white."""
    height, width = 1600, 1200  # as people see the image; the file has 1,600 x 1,200 pixels
    images, lists = [], []
    for sample in range(8):
        generator = np.random.default_rng(sample)
        left, top = (int(generator.integers(0, side // 2)) for side in (width, height))
        box = [left, top, left + width // 3, top + height // 5]
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[top : box[3], left : box[2]] = 255
        exif = Image.Exif()
        exif[0x0112] = 6  # turn clockwise to show it
        buffer = io.BytesIO()
        Image.fromarray(pixels).transpose(Image.Transpose.ROTATE_90).save(buffer, "JPEG", exif=exif)
        images.append(buffer.getvalue())
        lists.append([box])
    table = {"id": list(range(8)), "image": pa.array(images, pa.binary()), "boxes": lists}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    columns = {
        "image": fs.image(fs.decode_image(exif_orientation=True), transform=True),
        "boxes": fs.boxes("xyxy"),
    }
    ops = [fs.random_iou_crop(sampler_options=[0.2]), fs.resize((64, 64))]
    compared = 0
    loader = (
        fs.Dataset(tmp_path).map(columns, ops).shuffle(seed=SEED).batch(4).epochs(1).loader(output="numpy")
    )
    for batch in loader:
        assert batch["boxes_length"].tolist() == [1] * 4
        for row, identity in enumerate(batch["id"]):
            box, matrix = batch["boxes"][row][0], batch["image_transform"][row].astype(np.float64)
            assert matrix[0, 0] > 64 / width  # a part
            y, x = np.nonzero(batch["image"][row].mean(axis=-1) > 127)
            painted = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1])
            assert np.abs(box - painted).max() <= 1
            left, top, right, bottom = lists[identity][0]
            places = np.array([[left, top, 1], [right, bottom, 1]]) @ matrix.T
            np.testing.assert_allclose(places[:, :2].clip(0, 64).ravel(), box, rtol=0, atol=1e-2)
            compared += 1
    assert compared == 8


@pytest.mark.parametrize(
    ("broken", "message"),
    [([[1.0, 2.0, 3.0]], "a box must have 4 numbers; got 3"), (None, "the list is null")],
    ids=["three numbers", "null"],
)
def test_bad_boxes_are_bad_samples(broken: Any, message: str, tmp_path: Path) -> None:
    lists = [broken if one == 9 else corners_of(one).tolist() for one in range(SAMPLES)]
    data = fs.Dataset(write(tmp_path / "bad", boxes=pa.array(lists, pa.list_(pa.list_(pa.float32())))))
    pipeline = data.map(COLUMNS, CHAIN).batch(8).epochs(1)
    with pytest.raises(fs.SampleError, match=f"a.parquet row 9 .*'boxes': {message}") as raised:
        list(pipeline.loader(output="numpy"))
    assert raised.value.column == "boxes"
    loader = pipeline.on_error("skip", max_fraction=0.1).loader()
    assert sum(int(batch.valid.sum()) for batch in loader) == SAMPLES - 1


def test_mistakes_are_named(detection: Path) -> None:
    data, size = fs.Dataset(detection), fs.resize((8, 8))
    both = {"image": fs.image(), "boxes": fs.boxes("xyxy")}
    needs = r"random_iou_crop crops by boxes; map the image jointly with its boxes, and add fs.boxes"
    for columns in ({"image": fs.image()}, {"image": fs.image(), "points": fs.keypoints()}):
        with pytest.raises(fs.ConfigError, match=needs):
            data.map(columns, fs.random_iou_crop(), size)
    with pytest.raises(fs.ConfigError, match=needs):
        data.map("image", fs.decode_image(), fs.random_iou_crop(), size)
    views = fs.views({"one": [fs.random_iou_crop(), size], "two": [size]})
    with pytest.raises(fs.ConfigError, match=f"view 'one': {needs}"):
        data.map("image", fs.decode_image(), views)
    with pytest.raises(fs.ConfigError, match=r"op 2 \(random_iou_crop\): comes once in a chain"):
        data.map(both, fs.random_iou_crop(), fs.random_iou_crop(), size)
    with pytest.raises(fs.ConfigError, match="random_iou_crop.*changes the image's size"):
        data.map(both, fs.random_apply([fs.random_iou_crop()]), size)
    with pytest.raises(fs.ConfigError, match="the chain has no fixed output size"):
        data.map(both, size, fs.random_iou_crop())
    for options, message in (
        ({"min_scale": 0.0}, "min_scale … max_scale must be a range above 0 and at most 1; got 0..1"),
        ({"min_scale": 0.6, "max_scale": 0.5}, "min_scale … max_scale must be a range"),
        ({"max_aspect_ratio": 0.4}, "min_aspect_ratio … max_aspect_ratio must be a range within 0.001"),
        ({"sampler_options": []}, "sampler_options must have 1 … 100 numbers; got 0"),
        ({"sampler_options": [0.1, -1.0]}, "sampler_options must be finite numbers >= 0; got -1"),
        ({"trials": 0}, "trials must be 1 … 1000; got 0"),
        ({"trials": 1001}, "trials must be 1 … 1000; got 1001"),
    ):
        with pytest.raises(fs.ConfigError, match=message):
            data.map(both, fs.random_iou_crop(**options), size)  # type: ignore[arg-type]
