"""``fs.image(transform=True)``: the matrix from the decoded image to the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from boxed import COLUMNS, SAMPLES, corners_of, labels_of, points_of, rows, size_of, write
from moves import STEPS
from served import worker

import feedstock as fs

torch = pytest.importorskip("torch")

#: Pixels.
TOLERANCE = 1e-3
CHAINS = [
    ["shorter", "random_crop", "vertical_flip"],
    ["horizontal_flip", "random_resized_crop", "color_jitter"],
    ["random_zoom_out", "limited", "horizontal_flip", "scale_jitter", "pad_to"],
    ["horizontal_flip", "iou_crop", "resize"],
    ["rotate", "resize"],
    ["turn", "pad_to"],
    ["affine", "resize"],
    ["resize", "perspective"],
]
OPS = {
    **{name: op for name, (op, _) in STEPS.items()},
    "iou_crop": fs.random_iou_crop(),
    "turn": fs.rotate((-80, 110), expand=True),
}
WITH = {**COLUMNS, "image": fs.image(transform=True), "points": fs.keypoints()}


@pytest.fixture(scope="module")
def detection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("detection"))


def mapped(matrix: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Returns the smallest boxes around the four mapped corners of boxes [n, 4]."""
    x, y = corners[:, [0, 2, 2, 0]], corners[:, [1, 1, 3, 3]]
    places = np.stack([x, y, np.ones_like(x)], axis=-1) @ matrix.astype(np.float64).T
    places = places[..., :2] / places[..., 2:]
    return np.concatenate([places.min(axis=1), places.max(axis=1)], axis=1)


@pytest.mark.parametrize("steps", CHAINS, ids="+".join)
def test_boxes_and_points_go_where_the_matrix_takes_them(steps: list[str], detection: Path) -> None:
    found = rows(fs.Dataset(detection).map(WITH, [OPS[step] for step in steps]))
    boxes = points = 0
    for identity, sample in found.items():
        matrix, given = sample["image_transform"], corners_of(identity).astype(np.float64)
        assert (matrix.dtype, matrix.shape, matrix[2, 2]) == (np.float32, (3, 3), 1)
        height, width = size_of(identity)
        expected = mapped(matrix, given)
        limits = sample["image"].shape[1::-1]
        for label, box in zip(sample["category"], sample["boxes"], strict=True):
            index = labels_of(identity).index(int(label))
            starts, ends = given[index, :2], given[index, 2:]
            if (starts < 0).any() or (ends > (width, height)).any():
                continue  # cut off before the geometry
            if (expected[index, :2] > 0.01).all() and (expected[index, 2:] < np.array(limits) - 0.01).all():
                np.testing.assert_allclose(box, expected[index], rtol=0, atol=TOLERANCE)
                boxes += 1
        if not any("flip" in step for step in steps):  # see the next test
            x, y = points_of(identity)[:, :2].astype(np.float64).T
            places = mapped(matrix, np.stack([x, y, x, y], axis=1))[:, :2]
            np.testing.assert_allclose(sample["points"][:, :2], places, rtol=0, atol=TOLERANCE)
            points += len(places)
    assert boxes > 15
    assert points == 0 or points == 4 * SAMPLES


MIRROR, SIDES = fs.horizontal_flip(1.0), (64, 72)


@pytest.mark.parametrize(
    ("ops", "further"),
    [
        ([fs.resize(SIDES), MIRROR], lambda _: (-1, 0)),
        ([fs.resize(SIDES), fs.vertical_flip(1.0), MIRROR], lambda _: (-1, -1)),
        ([MIRROR, fs.resize(SIDES)], lambda size: (-SIDES[1] / size[1], 0)),
        ([fs.vertical_flip(1.0), fs.resize(SIDES)], lambda size: (0, -SIDES[0] / size[0])),
        ([MIRROR, fs.rotate((90, 90), expand=True), fs.pad_to(150)], lambda _: (0, 1)),
    ],
    ids=["last", "both", "resized", "resized vertically", "turned"],
)
def test_a_flip_moves_points_one_pixel_further_than_the_matrix(
    ops: list[fs.Op], further: Callable[[tuple[int, int]], tuple[float, float]], detection: Path
) -> None:
    """As a pixel's column moves, from x to width - 1 - x. Later ops scale and turn that pixel."""
    for identity, sample in rows(fs.Dataset(detection).map(WITH, ops)).items():
        x, y = points_of(identity)[:, :2].astype(np.float64).T
        places = mapped(sample["image_transform"], np.stack([x, y, x, y], axis=1))[:, :2]
        expected = places + further(size_of(identity))
        np.testing.assert_allclose(sample["points"][:, :2], expected, rtol=0, atol=TOLERANCE)


def test_predicted_boxes_are_mapped_back(tmp_path: Path) -> None:
    """The example of docs/python/boxes.md: what the inverse makes of the results are the boxes of the column."""
    lists = [[[1.0, 2.0, 3.0]] if one == 9 else corners_of(one).tolist() for one in range(SAMPLES)]
    data = fs.Dataset(write(tmp_path / "bad", boxes=pa.array(lists, pa.list_(pa.list_(pa.float32())))))
    ops = [STEPS[step][0] for step in ("horizontal_flip", "random_resized_crop")]
    pipeline = data.map(WITH, ops).batch(8).epochs(1).on_error("skip", max_fraction=0.1)
    compared = rows_compared = 0
    for batch in pipeline.loader(output="torch"):
        valid = batch["valid"]
        predicted, lengths, labels = (batch[name][valid] for name in ("boxes", "boxes_length", "category"))
        inverse = torch.linalg.inv(batch["image_transform"][valid].double())
        x, y = predicted[..., [0, 2, 2, 0]], predicted[..., [1, 1, 3, 3]]
        places = torch.stack([x, y, torch.ones_like(x)], dim=-1).double() @ inverse[:, None].mT
        places = places[..., :2] / places[..., 2:]
        back = torch.cat([places.amin(dim=2), places.amax(dim=2)], dim=-1)
        for row, identity in enumerate(batch["id"][valid].tolist()):
            rows_compared += 1
            for box in range(int(lengths[row])):
                left, top, right, bottom = predicted[row, box].tolist()
                if left > 0 and top > 0 and right < 72 and bottom < 64:
                    index = labels_of(identity).index(int(labels[row, box]))
                    np.testing.assert_allclose(back[row, box], corners_of(identity)[index], atol=1e-2)
                    compared += 1
    assert compared > 5
    assert rows_compared == SAMPLES - 1


def test_the_matrix_is_an_option_and_changes_nothing_else(detection: Path) -> None:
    ops = [OPS[step] for step in ("horizontal_flip", "iou_crop", "random_resized_crop")]
    pipeline = fs.Dataset(detection).map(WITH, ops)
    plain = rows(fs.Dataset(detection).map({**COLUMNS, "points": fs.keypoints()}, ops))
    serving = worker(detection)
    remote = rows(pipeline, workers=serving.address)
    for identity, sample in rows(pipeline).items():
        assert set(sample) - set(plain[identity]) == {"image_transform"}
        for name, value in sample.items():
            assert (value == remote[identity][name]).all()
            assert name == "image_transform" or (value == plain[identity][name]).all()


def test_mistakes_are_named(detection: Path, tmp_path: Path) -> None:
    data = fs.Dataset(detection)
    with pytest.raises(fs.ConfigError, match="transform must be True or False; got 1"):
        fs.image(transform=1)  # type: ignore[arg-type]
    twice = {"image": fs.image(transform=True), "image_transform": fs.boxes("xyxy")}
    with pytest.raises(fs.ConfigError, match="column 'image_transform' is in the joint map more than once"):
        data.map(twice, fs.resize((8, 8)))
    with pytest.raises(fs.ConfigError, match="moves pixels of the image"):
        data.map({"image": fs.image(transform=True)}, fs.rand_augment(), fs.resize((8, 8)))
    alone = data.map({"image": fs.image(transform=True)}, fs.resize((8, 8))).batch(8)
    with pytest.raises(fs.ConfigError, match="nvjpeg: 'image' is mapped jointly"):
        alone.loader(device="cpu", nvjpeg=0.5)
    for finish, what in (
        (fs.finish_pictures(flip=0.5), "flip would mirror it and not the other columns of its joint map"),
        (
            fs.finish_pictures(mix=fs.mixup_cutmix()),
            "mix would mix it and not the other columns of its joint map",
        ),
    ):
        with pytest.raises(fs.ConfigError, match=f"finish of 'image', which is mapped jointly: {what}"):
            alone.loader(device="cpu", finish={"image": finish})
    taken = fs.Dataset(write(tmp_path / "taken", image_transform=pa.array([0] * SAMPLES)))
    pipeline = taken.map({"image": fs.image(transform=True)}, fs.resize((8, 8))).batch(8)
    needs = (
        r"'image_transform', which already exists; rename that column, or leave it out with Dataset\.columns"
    )
    with pytest.raises(fs.ConfigError, match=needs):
        pipeline.loader()
