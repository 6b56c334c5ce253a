"""Boxes and keypoints of a joint map, against torchvision v2's tv_tensors with the same drawn parameters."""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
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
from moves import STEPS
from PIL import Image
from served import worker

import feedstock as fs

torch = pytest.importorskip("torch")
tv_tensors = pytest.importorskip("torchvision.tv_tensors")
v2 = pytest.importorskip("torchvision.transforms.v2")
F = v2.functional


@pytest.fixture(scope="module")
def detection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("detection"))


def expected_boxes(sample: int, identity: int, steps: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the boxes that torchvision makes and keeps, and their indices."""
    kept = torch.arange(sample % 6)
    boxes = tv_tensors.BoundingBoxes(
        corners_of(sample), format="XYXY", canvas_size=size_of(sample), dtype=torch.float64
    )
    for index, step in enumerate(steps):
        boxes = STEPS[step][1](boxes, Draws(SEED, 0, identity, index + 1))
        # torchvision keeps boxes that are outside as lines on the edge, to which later warps give an area.
        inside = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        boxes, kept = tv_tensors.wrap(boxes[inside], like=boxes), kept[inside]
    boxes, valid = F.sanitize_bounding_boxes(F.clamp_bounding_boxes(boxes), min_size=1.0, min_area=1.0)
    return boxes.numpy(), kept[valid].numpy()


def expected_points(sample: int, identity: int, steps: list[str]) -> np.ndarray:
    """Returns the places of points that torchvision computes, without exchanged pairs."""
    places = points_of(sample)[:, :2]
    points = tv_tensors.KeyPoints(places, canvas_size=size_of(sample), dtype=torch.float64)
    for index, step in enumerate(steps):
        points = STEPS[step][1](points, Draws(SEED, 0, identity, index + 1))
    return points.numpy()


CHAINS = [
    *([step, "resize"] for step in STEPS),
    ["random_resized_crop", "horizontal_flip", "color_jitter"],
    ["shorter", "random_crop", "vertical_flip", "resize"],
    ["random_zoom_out", "limited", "horizontal_flip", "scale_jitter", "pad_to"],
    ["center_crop", "pad", "rotate", "horizontal_flip", "affine", "resize", "perspective"],
]


@pytest.mark.parametrize("steps", CHAINS, ids="+".join)
def test_boxes_and_points_are_torchvisions(steps: list[str], detection: Path) -> None:
    columns = {**COLUMNS, "points": fs.keypoints()}
    found = rows(fs.Dataset(detection).map(columns, [STEPS[step][0] for step in steps]))
    count = 0
    for identity, sample in found.items():
        boxes, kept = expected_boxes(identity, int(sample["sample_ids"]), steps)
        assert sample["boxes"].shape == boxes.shape
        np.testing.assert_allclose(sample["boxes"], boxes, rtol=0, atol=TOLERANCE)
        assert sample["category"].tolist() == [labels_of(identity)[index] for index in kept]
        assert sample["crowd"].tolist() == [index % 2 == 0 for index in kept + 100 * identity]
        places = expected_points(identity, int(sample["sample_ids"]), steps)
        np.testing.assert_allclose(sample["points"][:, :2], places, rtol=0, atol=TOLERANCE)
        count += len(boxes)
    assert count > SAMPLES / 2


def test_results_are_dense_with_lengths(detection: Path) -> None:
    pipeline = fs.Dataset(detection).map(COLUMNS, fs.resize((32, 32))).batch(8).epochs(1)
    for batch in pipeline.loader(output="torch"):
        most = int(batch["boxes_length"].max())
        for name, dtype in (("boxes", torch.float32), ("category", torch.int64), ("crowd", torch.uint8)):
            assert batch[name].shape[:2] == (8, most)
            assert batch[name].dtype == dtype
        assert batch["points"].shape == (8, 4, 3)
        assert batch["points_length"].tolist() == [4] * 8
        assert (batch["category_length"] == batch["boxes_length"]).all()
        assert batch["boxes_length"].dtype == torch.int64


def test_the_image_has_the_bytes_of_its_single_map(detection: Path) -> None:
    ops = [STEPS[step][0] for step in ("shorter", "random_crop", "affine", "horizontal_flip", "color_jitter")]
    joint = rows(fs.Dataset(detection).map(COLUMNS, ops))
    single = rows(fs.Dataset(detection, columns=["id", "image"]).map("image", fs.decode_image(), ops))
    for identity, sample in joint.items():
        assert (sample["image"] == single[identity]["image"]).all()


def test_boxes_are_where_a_mask_is(tmp_path: Path) -> None:
    """A mask of one box: its extent after the geometry is the box's, within a pixel."""
    masks, boxes = [], []
    for sample in range(SAMPLES):
        height, width = size_of(sample)
        generator = np.random.default_rng(sample)
        left, top = (int(generator.integers(0, side - 20)) for side in (width, height))
        right, bottom = left + int(generator.integers(8, 20)), top + int(generator.integers(8, 20))
        mask = np.zeros((height, width), np.uint8)
        mask[top:bottom, left:right] = 1
        buffer = io.BytesIO()
        Image.fromarray(mask).save(buffer, "PNG")
        masks.append(buffer.getvalue())
        boxes.append([left, top, right - left, bottom - top])  # a flat list
    columns = {"mask": pa.array(masks, pa.binary()), "boxes": pa.array(boxes, pa.list_(pa.int64()))}
    data = fs.Dataset(write(tmp_path / "masks", **columns, category=None))
    groups = [
        fs.random_apply([fs.invert(1.0), fs.vertical_flip(0.9)], 0.6),
        fs.random_choice([fs.horizontal_flip(1.0), fs.solarize(9, 1.0)], probabilities=[3, 1]),
    ]
    ops = [STEPS["pad"][0], STEPS["random_resized_crop"][0], *groups, STEPS["resize"][0]]
    found = rows(data.map({"boxes": fs.boxes("xywh"), "mask": fs.mask(fill=0)}, ops))
    seen = 0
    for sample in found.values():
        y, x = np.nonzero(sample["mask"])
        if len(x) == 0:
            continue
        extent = [x.min(), y.min(), x.max() + 1 - x.min(), y.max() + 1 - y.min()]
        seen += len(sample["boxes"])
        if len(sample["boxes"]):
            assert np.abs(sample["boxes"][0] - extent).max() <= 1.5
    assert seen > SAMPLES / 3


def test_points_outside_are_not_visible_and_pairs_are_exchanged(detection: Path) -> None:
    data = fs.Dataset(detection)
    ops = [fs.center_crop((60, 64)), fs.horizontal_flip(1.0)]
    plain = rows(data.map({**COLUMNS, "points": fs.keypoints()}, ops))
    hidden = 0
    for identity, sample in rows(data.map(COLUMNS, ops)).items():
        assert (sample["points"] == plain[identity]["points"][[3, 1, 2, 0]]).all()
        given, (height, width) = points_of(identity), size_of(identity)
        left, top = round((width - 64) / 2), round((height - 60) / 2)
        x, y = given[:, 0], given[:, 1]
        inside = (x >= left) & (x < left + 64) & (y >= top) & (y < top + 60)
        inside &= (x >= 0) & (x < width) & (y >= 0) & (y < height)
        assert (plain[identity]["points"][:, 2] == np.where(inside, given[:, 2], 0)).all()
        hidden += int((~inside).sum())
    assert hidden > SAMPLES


def test_formats_are_kept(tmp_path: Path) -> None:
    """All forms of one box become the same box, in the column's form."""
    forms: dict[str, list[list[float]]] = {"xyxy": [], "xywh": [], "cxcywh": []}
    for sample in range(SAMPLES):
        boxes = torch.from_numpy(corners_of(sample)).double()
        for form, lists in forms.items():
            converted = F.convert_bounding_box_format(boxes, old_format="xyxy", new_format=form)
            height, width = size_of(sample)
            lists.append((converted / torch.tensor([width, height, width, height])).flatten().tolist())
    columns = {form: pa.array(lists, pa.list_(pa.float64())) for form, lists in forms.items()}
    data = fs.Dataset(write(tmp_path / "forms", **columns, category=None, crowd=None))
    ops = [STEPS["random_resized_crop"][0], STEPS["affine"][0]]
    joint = {
        "image": fs.image(),
        "boxes": fs.boxes("xyxy"),
        **{form: fs.boxes(form, normalized=True) for form in forms},  # type: ignore[arg-type]
    }
    for sample in rows(data.map(joint, ops)).values():
        sides = np.array([72, 64, 72, 64])
        for form in forms:
            boxes = torch.from_numpy(sample[form] * sides)
            corners = F.convert_bounding_box_format(boxes, old_format=form, new_format="xyxy")
            np.testing.assert_allclose(corners.numpy(), sample["boxes"], atol=TOLERANCE)


def test_boxes_are_dropped_by_their_visible_share(detection: Path) -> None:
    data = fs.Dataset(detection)
    columns = {"image": fs.image(), "boxes": fs.boxes("xyxy", min_visibility=0.6, along=["category"])}
    dropped = 0
    for identity, sample in rows(data.map(columns, fs.center_crop((44, 44)))).items():
        height, width = size_of(identity)
        given = corners_of(identity).astype(np.float64)
        left, top = round((width - 44) / 2), round((height - 44) / 2)
        moved = given - [left, top, left, top]
        shown = moved.clip(0, 44)
        share = areas(shown) / areas(moved)
        large = (shown[:, 2:] - shown[:, :2] >= 1).all(axis=1) & (areas(shown) >= 1)
        assert sample["category"].tolist() == np.array(labels_of(identity))[large & (share >= 0.6)].tolist()
        dropped += int((large & (share < 0.6)).sum())
    assert dropped > 10


@pytest.mark.parametrize(
    "steps", [["limited", "pad_to"], ["random_zoom_out", "scale_jitter", "pad_to"]], ids="+".join
)
def test_images_of_detectors_are_torchvisions(steps: list[str], detection: Path) -> None:
    """On PIL images, with the same drawn parameters."""
    ops = [fs.decode_image(scaled=False), *(STEPS[step][0] for step in steps)]
    found = rows(fs.Dataset(detection, columns=["id", "image"]).map("image", ops))
    for identity, sample in found.items():
        image = Image.open(io.BytesIO(image_of(identity)))
        for index, step in enumerate(steps):
            draws = Draws(SEED, 0, int(sample["sample_ids"]), index + 1)
            image = STEPS[step][1](image, draws)
        assert np.abs(sample["image"].astype(int) - np.asarray(image).astype(int)).max() <= 1


def test_an_image_larger_than_its_canvas_is_a_bad_sample(detection: Path) -> None:
    pipeline = fs.Dataset(detection).map(
        {"image": fs.image(), "boxes": fs.boxes("xyxy")}, fs.pad_to((62, 200))
    )
    with pytest.raises(
        fs.SampleError, match=r"pad_to: the image is 63×107 .*, larger than 62×200; resize first"
    ):
        list(pipeline.batch(8).epochs(1).loader())


def areas(corners: np.ndarray) -> np.ndarray:
    return (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])


def test_workers_send_the_same_boxes(detection: Path) -> None:
    pipeline = fs.Dataset(detection).map(COLUMNS, [STEPS[s][0] for s in ("random_resized_crop", "rotate")])
    local = rows(pipeline)
    serving = worker(detection)
    remote = rows(pipeline, workers=serving.address)
    for identity, sample in local.items():
        for name, value in sample.items():
            assert (value == remote[identity][name]).all()


def test_every_list_type_is_read(tmp_path: Path) -> None:
    lists = [corners_of(sample).tolist() for sample in range(SAMPLES)]
    pairs = [points_of(sample)[:, :2].tolist() for sample in range(SAMPLES)]
    columns = {
        "boxes": pa.array(lists, pa.list_(pa.list_(pa.float32()))),
        "fixed": pa.array(lists, pa.list_(pa.list_(pa.float64(), 4))),
        "large": pa.array(lists, pa.large_list(pa.large_list(pa.float32()))),
        "flat": pa.array([corners_of(s).ravel() for s in range(SAMPLES)], pa.list_(pa.float32())),
        "pairs": pa.array(pairs, pa.list_(pa.list_(pa.float32(), 2))),
        "objects": pa.array([[points_of(s).ravel().tolist()] for s in range(SAMPLES)]),
    }
    data = fs.Dataset(write(tmp_path / "types", **columns, category=None, crowd=None))
    names = ("boxes", "fixed", "large", "flat")
    joint = {"image": fs.image(), **{name: fs.boxes("xyxy") for name in names}}
    joint.update({name: fs.keypoints([(0, 3)]) for name in ("points", "pairs", "objects")})
    for sample in rows(data.map(joint, STEPS["random_resized_crop"][0], fs.horizontal_flip())).values():
        for name in names:
            assert (sample[name] == sample["boxes"]).all()
        assert (sample["objects"] == sample["points"]).all()
        np.testing.assert_allclose(sample["pairs"][:, :2], sample["points"][:, :2], atol=TOLERANCE)
        assert (sample["pairs"][:, 2] == (sample["points"][:, 2] > 0)).all()


def test_bad_lists_are_bad_samples(tmp_path: Path) -> None:
    broken: dict[int, tuple[Any, str]] = {
        3: ([[1.0, 2.0, math.nan, 4.0]], "box 0 has a number that is not finite: NaN"),
        9: ([[1.0, 2.0, 3.0]], "a box must have 4 numbers; got 3"),
        11: ([[1.0, 2.0, 3.0, 4.0], [1.0]], "item 1 has 1 number, and item 0 has 4"),
        17: (None, "the list is null"),
        23: ([[1.0, 2.0, None, 4.0]], "item 0: item 2 of the list is null"),
        29: ([[1.0, 2.0, 9.0, 9.0]], "'category': the list has 5 items, and there is 1 box"),
    }
    for sample, (boxes, message) in broken.items():
        lists = [boxes if one == sample else corners_of(one).tolist() for one in range(SAMPLES)]
        data = fs.Dataset(
            write(tmp_path / str(sample), boxes=pa.array(lists, pa.list_(pa.list_(pa.float32()))))
        )
        pipeline = data.map(COLUMNS, fs.resize((8, 8))).batch(8).epochs(1)
        with pytest.raises(fs.SampleError, match=f"a.parquet row {sample} .*{message}".replace("[", r"\[")):
            list(pipeline.loader(output="numpy"))
        loader = pipeline.on_error("skip", max_fraction=0.1).loader()
        assert sum(int(batch.valid.sum()) for batch in loader) == SAMPLES - 1


def test_mistakes_are_named(detection: Path) -> None:
    data = fs.Dataset(detection)
    both = {"image": fs.image(), "boxes": fs.boxes("xyxy")}
    size = fs.resize((8, 8))
    for op in (
        fs.rand_augment(),
        fs.trivial_augment(),
        fs.timm_rand_augment(),
        fs.aug_mix(),
        fs.random_apply([fs.auto_augment()]),
    ):
        with pytest.raises(
            fs.ConfigError, match="(augment|aug_mix).*moves pixels of the image, which masks, boxes and"
        ):
            data.map(both, op, size)
        with pytest.raises(fs.ConfigError, match="(augment|aug_mix).*moves pixels of the image"):
            data.map({"image": fs.image(), "points": fs.keypoints()}, op, size)
    with pytest.raises(fs.ConfigError, match='op 1 .pad.*padding_mode must be "constant"'):
        data.map(both, fs.pad(3, padding_mode="reflect"), size)
    with pytest.raises(fs.ConfigError, match="max_size must be above size, 50; got 50"):
        data.map(both, fs.resize(50, max_size=50), size)
    with pytest.raises(fs.ConfigError, match="max_size needs a size of one number"):
        data.map(both, fs.resize((50, 60), max_size=70))
    with pytest.raises(fs.ConfigError, match="side_range must be a range within 1"):
        data.map(both, fs.random_zoom_out(side_range=(0.5, 2)), size)
    with pytest.raises(fs.ConfigError, match="the chain has no fixed output size"):
        data.map(both, fs.scale_jitter(50))
    with pytest.raises(fs.ConfigError, match="each column has its fill.*pad_to"):
        data.map(both, fs.pad_to(50, fill=3))
    with pytest.raises(fs.ConfigError, match="boxes and keypoints follow an image"):
        data.map({"boxes": fs.boxes("xyxy")}, size)
    with pytest.raises(fs.ConfigError, match="format must be 'xyxy', 'xywh' or 'cxcywh'; got 'xyhw'"):
        fs.boxes("xyhw")  # type: ignore[arg-type]
    with pytest.raises(fs.ConfigError, match="min_area must be a finite number >= 0; got -1"):
        fs.boxes("xyxy", min_area=-1)
    with pytest.raises(fs.ConfigError, match="min_visibility must be 0 to 1; got 1.5"):
        fs.boxes("xyxy", min_visibility=1.5)
    with pytest.raises(fs.ConfigError, match="along must be a list of names; got 'category'"):
        fs.boxes("xyxy", along="category")
    with pytest.raises(fs.ConfigError, match="along must name each column once"):
        fs.boxes("xyxy", along=["category", "category"])
    with pytest.raises(fs.ConfigError, match="column 'boxes' is in the joint map more than once"):
        data.map({"image": fs.image(), "boxes": fs.boxes("xyxy", along=["boxes"])}, size)
    with pytest.raises(fs.ConfigError, match="flip_pairs must be pairs of indices"):
        fs.keypoints([(1, 2, 3)])  # type: ignore[list-item]
    with pytest.raises(fs.ConfigError, match="flip_pairs must be pairs of indices of points; got .1, 2."):
        fs.keypoints([1, 2])  # type: ignore[list-item]
    with pytest.raises(
        fs.ConfigError, match="flip_pairs must name each point once; point 1 is in them twice"
    ):
        data.map({"image": fs.image(), "points": fs.keypoints([(0, 1), (1, 2)])}, size)
    for joint, message in (
        (
            {"crowd": fs.boxes("xyxy")},
            "'crowd' cannot be mapped as boxes: it holds List.*must hold lists of numbers",
        ),
        (
            {"lost": fs.keypoints()},
            "'lost' cannot be mapped as keypoints: it does not exist; .*numbers in: boxes,",
        ),
        (
            {"boxes": fs.boxes("xyxy", along=["lost"])},
            "column 'lost' cannot be along boxes: it does not exist",
        ),
        (
            {"boxes": fs.boxes("xyxy", along=["id"])},
            "'id' cannot be along boxes: it holds Int64.*flat lists of numbers",
        ),
    ):
        with pytest.raises(fs.ConfigError, match=message):
            data.map({"image": fs.image(), **joint}, size).batch(8).loader()
    with pytest.raises(fs.ConfigError, match="nvjpeg: 'image' is mapped jointly"):
        data.map(both, size).batch(8).loader(device="cpu", nvjpeg=0.5)


def test_pipelines_are_pickled_and_columns_read_twice(detection: Path) -> None:
    pipeline = fs.Dataset(detection).map(COLUMNS, STEPS["random_resized_crop"][0])
    first, again = rows(pipeline), rows(pickle.loads(pickle.dumps(pipeline)))
    for identity, sample in first.items():
        for name, value in sample.items():
            assert (value == again[identity][name]).all()
