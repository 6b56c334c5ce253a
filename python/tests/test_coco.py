"""COCO's files of annotations, against the JSON itself and pycocotools."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from served import worker

import feedstock as fs

IMAGES, CATEGORIES = 24, [{"id": 1, "name": "person"}, {"id": 3, "name": "car"}, {"id": 90, "name": "brush"}]


def size_of(image: int) -> tuple[int, int]:
    """Returns width and height."""
    return 80 + image, 120 - image


def instances() -> dict[str, Any]:
    """Returns images in a random sequence, with 0 to 4 annotations each, in a random sequence, too."""
    generator = np.random.default_rng(3)
    images, annotations = [], []
    for image in generator.permutation(IMAGES).tolist():
        width, height = size_of(image)
        name = f"{image:012}.png"
        images.append({"id": 1000 - image, "file_name": name, "width": width, "height": height})
        for _ in range(image % 5):
            left, top = generator.uniform(0, (width - 20, height - 20))
            extent = generator.uniform(4, 20, 2)
            annotations.append(
                {
                    "image_id": 1000 - image,
                    "bbox": [round(float(value), 2) for value in (left, top, *extent)],
                    "category_id": int(generator.choice([1, 3, 90])),
                    "area": round(float(extent.prod()), 3),
                    "iscrowd": int(generator.integers(2)),
                    "segmentation": [[float(left), float(top), float(left + 1), float(top)]],
                    "keypoints": generator.integers(0, 60, 6).tolist(),
                }
            )
    generator.shuffle(annotations)
    for number, annotation in enumerate(annotations):
        annotation["id"] = 7 * number
    return {"images": images, "annotations": annotations, "categories": CATEGORIES}


def write(root: Path, file: dict[str, Any]) -> Path:
    (root / "val2017").mkdir()
    (root / "annotations").mkdir()
    for image in range(IMAGES):
        pixels = np.random.default_rng(image).integers(0, 256, size_of(image)[::-1], dtype=np.uint8)
        Image.fromarray(pixels).convert("RGB").save(root / "val2017" / f"{image:012}.png")
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(file))
    return root


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("coco"), instances())


def opened(root: Path, annotations: str = "../annotations/instances_val2017.json") -> fs.Dataset:
    return fs.Dataset(root / "val2017", annotations=annotations)


def annotations_of(file: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for annotation in file["annotations"]:
        found[annotation["image_id"]].append(annotation)
    return found


def test_columns_are_those_of_the_file(coco: Path) -> None:
    file = json.loads((coco / "annotations" / "instances_val2017.json").read_text())
    data = opened(coco)
    names = data.class_names("category_id")
    assert names is not None
    assert {names[category["id"]] for category in CATEGORIES} == {"person", "car", "brush"}
    found = data.head(IMAGES).rows()
    assert [row["file_name"] for row in found] == sorted(image["file_name"] for image in file["images"])
    of_images = annotations_of(file)
    for row in found:
        (image,) = (image for image in file["images"] if image["id"] == row["image_id"])
        assert (row["file_name"], row["width"], row["height"]) == (
            image["file_name"],
            image["width"],
            image["height"],
        )
        expected = of_images[row["image_id"]]
        assert np.array_equal(
            np.float32(row["boxes"]).reshape(-1, 4),
            np.float32([a["bbox"] for a in expected]).reshape(-1, 4),
        )
        for column in "category_id", "iscrowd", "keypoints":
            assert row[column] == [a[column] for a in expected]
        assert np.array_equal(np.float32(row["area"]), np.float32([a["area"] for a in expected]))


def test_columns_are_those_of_pycocotools(coco: Path) -> None:
    reference = COCO(coco / "annotations" / "instances_val2017.json")
    for row in opened(coco).head(IMAGES).rows():
        expected = reference.loadAnns(reference.getAnnIds(imgIds=[row["image_id"]]))
        assert row["category_id"] == [annotation["category_id"] for annotation in expected]


def boxes(pipeline: fs.Pipeline, **options: Any) -> dict[int, dict[str, np.ndarray]]:
    """Returns copies of each image's tensors by its id, without padding."""
    found = {}
    for batch in pipeline.shuffle(seed=2).batch(6).epochs(1).loader(output="numpy", **options):
        for row, identity in enumerate(batch["image_id"]):
            count = batch["boxes_length"][row]
            names = "boxes", "category_id", "iscrowd"
            found[int(identity)] = {name: np.array(batch[name][row][:count]) for name in names}
            found[int(identity)]["image"] = np.array(batch["image"][row])
    return found


COLUMNS = {"image": fs.image(), "boxes": fs.boxes("xywh", along=("category_id", "iscrowd"))}
CHOSEN = ["image_id", "image", "boxes", "category_id", "iscrowd"]


def test_boxes_follow_their_image(coco: Path) -> None:
    """The ops flip the image and cut 32 pixels from its left: then boxes begin that much further to the left."""
    data = opened(coco).columns(CHOSEN)
    ops = [fs.horizontal_flip(probability=1.0), fs.center_crop((60, 60))]
    found = boxes(data.map(COLUMNS, ops))
    of_images = annotations_of(instances())
    assert len(found) == IMAGES
    kept = 0
    for identity, sample in found.items():
        width, height = size_of(1000 - identity)
        left, top = round((width - 60) / 2), round((height - 60) / 2)
        expected = []
        for a in of_images[identity]:
            x, y, w, h = a["bbox"]
            x0, y0 = np.clip([width - x - w - left, y - top], 0, 60)
            x1, y1 = np.clip([width - x - left, y + h - top], 0, 60)
            if x1 - x0 >= 1 and y1 - y0 >= 1:
                expected.append(([x0, y0, x1 - x0, y1 - y0], a["category_id"], a["iscrowd"]))
        assert len(sample["boxes"]) == len(expected)
        for row, (box, category, crowd) in enumerate(expected):
            assert np.abs(sample["boxes"][row] - box).max() < 1e-3
            assert (sample["category_id"][row], sample["iscrowd"][row]) == (category, crowd)
        kept += len(expected)
    assert 0 < kept < len(instances()["annotations"])


def test_workers_send_the_same_boxes(coco: Path) -> None:
    pipeline = opened(coco).columns(CHOSEN).map(COLUMNS, fs.random_resized_crop(32), fs.horizontal_flip())
    local = boxes(pipeline)
    serving = worker(coco)
    remote = boxes(pipeline, workers=serving.address)
    serving.stop()
    assert local.keys() == remote.keys()
    for identity, sample in local.items():
        for name, value in sample.items():
            assert (value == remote[identity][name]).all()
    refusing = worker(coco / "val2017")
    with pytest.raises(fs.DeniedError, match=r"instances_val2017\.json: outside of what is allowed"):
        boxes(pipeline, workers=refusing.address)
    refusing.stop()


def test_captions_are_lists_of_texts(tmp_path: Path) -> None:
    file = instances()
    captions = [
        {"id": number, "image_id": image["id"], "caption": f"{image['file_name']}: ü {number}"}
        for number, image in enumerate(file["images"] * 2)
    ]
    root = write(tmp_path, {"images": file["images"], "annotations": captions})
    data = opened(root)
    assert "boxes" not in data.schema
    expected = annotations_of({"annotations": captions})
    for row in data.head(IMAGES).rows():
        assert row["captions"] == [caption["caption"] for caption in expected[row["image_id"]]]


def test_files_that_are_not_cocos_are_refused(tmp_path: Path) -> None:
    file = instances()
    root = write(tmp_path, file)
    at = root / "annotations" / "instances_val2017.json"
    first = file["annotations"][0]
    for change, expected in [
        (
            {"bbox": [1.0, 2.0, float("nan"), 4.0]},
            r"instances_val2017\.json: not a COCO annotations file: .* line 1 column",
        ),
        (
            {"bbox": [1, 2, -3, 4]},
            r"the annotation 0 of the image \d+: its bbox has a negative width or height",
        ),
        ({"image_id": 5}, "the annotation 0 is of the image 5, which is not in its images"),
        ({"category_id": 2}, r"has the category 2, which is not in its categories"),
        ({"id": 7}, "the annotation id 7 is there twice"),
    ]:
        file["annotations"][0] = {**first, **change}
        at.write_text(json.dumps(file))
        with pytest.raises(fs.ConfigError, match=expected):
            opened(root)
    file["annotations"][0] = first
    at.write_text(json.dumps(file))
    (root / "val2017" / f"{7:012}.png").unlink()
    with pytest.raises(
        fs.ConfigError, match=r"1 of 24 images have no file: `000000000007\.png` of the image 993;"
    ):
        opened(root)
    assert len(fs.Dataset(root / "val2017", annotations=at, bad_shards="skip")) == IMAGES - 1
    with pytest.raises(fs.GoneError, match=r"relative to the data set's folder: .*val2017/none\.json"):
        opened(root, "none.json")


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    root = write(tmp_path, instances())
    (root / "val2017" / f"{7:012}.png").write_bytes(b"no image")
    pipeline = opened(root).columns(CHOSEN).map(COLUMNS, fs.resize((8, 8))).batch(4).epochs(1)
    with pytest.raises(fs.SampleError, match=r"val2017/000000000007\.png"):
        list(pipeline.loader(output="numpy"))
