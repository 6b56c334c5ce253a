"""Images and masks through the same ops, against Pillow; images also against torchvision v2."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from served import worker

import feedstock as fs

ROWS, CLASSES = 24, 19


def encode(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def scene(row: int) -> tuple[Image.Image, Image.Image]:
    """Returns an image and its mask, whose class at each pixel follows from the colour there."""
    generator = np.random.default_rng(row)
    height, width = 60 + row, 90 - row
    small = Image.fromarray(generator.integers(0, CLASSES, (5, 7), dtype=np.uint8))
    classes = np.asarray(small.resize((width, height), Image.Resampling.NEAREST))
    rgb = np.stack([classes * 13, 255 - classes * 13, classes * 7], axis=-1).astype(np.uint8)
    mask = Image.fromarray(classes)
    if row % 3:
        mask = mask.convert("P")
        mask.putpalette(generator.integers(0, 256, 768, dtype=np.uint8).tobytes())
    return Image.fromarray(rgb), mask


def write(folder: Path, masks: Sequence[bytes | None] | None = None) -> Path:
    scenes = [scene(row) for row in range(ROWS)]
    table = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "image": pa.array([encode(image) for image, _ in scenes], pa.binary()),
            "mask": pa.array(masks or [encode(mask) for _, mask in scenes], pa.binary()),
        }
    )
    pq.write_table(table, folder / "a.parquet", row_group_size=7)
    return folder


@pytest.fixture(scope="module")
def segmentation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("segmentation"))


def rows(pipeline: fs.Pipeline, **options: Any) -> dict[int, dict[str, np.ndarray]]:
    """Returns a copy of each sample's tensors by its id."""
    found = {}
    for batch in pipeline.shuffle(seed=5).batch(8).epochs(1).loader(output="numpy", **options):
        for row, identity in enumerate(batch["id"]):
            found[int(identity)] = {
                name: np.array(value[row]) for name, value in batch.items() if name != "id" and value.ndim > 1
            }
    assert len(found) == ROWS
    return found


OPS = [
    fs.random_resized_crop(32, scale=(0.2, 1.0), filter="nearest"),
    fs.horizontal_flip(),
    fs.color_jitter(0.4, 0.4),
]
CROPS = [fs.random_crop(48, padding=9), fs.horizontal_flip(), fs.center_crop((50, 60))]


def test_a_joint_map_keeps_masks_on_their_images(segmentation: Path) -> None:
    """The colour of a pixel states its class, so any crop of both must agree."""
    ops = OPS[:2]
    found = rows(fs.Dataset(segmentation).map({"image": fs.image(), "mask": fs.mask()}, ops))
    for sample in found.values():
        assert sample["image"].shape == (32, 32, 3)
        assert sample["mask"].shape == (32, 32)
        assert (sample["image"][..., 0] == sample["mask"] * 13).all()
    assert len({sample["mask"].tobytes() for sample in found.values()}) == ROWS


def test_the_image_has_the_bytes_of_its_single_map(segmentation: Path) -> None:
    joint = rows(fs.Dataset(segmentation).map({"image": fs.image(), "mask": fs.mask()}, OPS))
    data = fs.Dataset(segmentation, columns=["id", "image"])
    single = rows(data.map("image", fs.decode_image(), OPS))
    plain = rows(fs.Dataset(segmentation).map({"image": fs.image(), "mask": fs.mask()}, OPS[:2]))
    for identity, sample in joint.items():
        assert (sample["image"] == single[identity]["image"]).all()
        assert (sample["mask"] == plain[identity]["mask"]).all()  # colour changes no class


def test_masks_are_pillows_nearest(segmentation: Path) -> None:
    chain = [fs.decode_image(mode="indices"), fs.resize((37, 53), filter="bicubic")]
    for identity, sample in rows(fs.Dataset(segmentation, columns=["id", "mask"]).map("mask", chain)).items():
        expected = scene(identity)[1].resize((53, 37), Image.Resampling.NEAREST)
        assert (sample["mask"] == np.asarray(expected)).all()


def test_centre_crops_are_torchvisions(segmentation: Path) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    transform = v2.Compose(
        [v2.Resize(40, v2.InterpolationMode.BILINEAR, antialias=True), v2.CenterCrop((36, 30))]
    )
    ops = [fs.resize(40), fs.center_crop((36, 30))]
    data = fs.Dataset(segmentation)
    found = rows(data.map({"image": fs.image(fs.decode_image(scaled=False)), "mask": fs.mask()}, ops))
    for identity, sample in found.items():
        image, mask = scene(identity)
        picture = transform(image)
        assert np.abs(sample["image"].astype(int) - np.asarray(picture).astype(int)).max() <= 1
        expected = np.asarray(mask.resize(_shorter(mask.size, 40), Image.Resampling.NEAREST))
        top, left = round((expected.shape[0] - 36) / 2.0), round((expected.shape[1] - 30) / 2.0)
        assert (sample["mask"] == expected[top : top + 36, left : left + 30]).all()


def _shorter(size: tuple[int, int], side: int) -> tuple[int, int]:
    width, height = size
    return (side, int(side * height / width)) if width <= height else (int(side * width / height), side)


def test_padding_has_the_fill_of_its_column(segmentation: Path) -> None:
    columns = {"image": fs.image(fill=3), "mask": fs.mask(fill=77)}
    padded = 0
    for sample in rows(fs.Dataset(segmentation).map(columns, CROPS)).values():
        border = sample["mask"] == 77
        padded += int(border.sum())
        assert (sample["image"][border] == 3).all()
        assert (sample["image"][~border][:, 0] == sample["mask"][~border] * 13).all()
    assert padded > 1000


WARPS = [
    fs.pad((3, 5)),
    fs.center_crop((60, 64)),
    fs.vertical_flip(),
    fs.rotate(30),
    fs.random_apply([fs.affine(10, translate=(0.1, 0.1), scale=(0.8, 1.2))], 0.8),
    fs.random_choice([fs.perspective(0.4, 1.0, interpolation="nearest"), fs.horizontal_flip(1.0)]),
]


def test_masks_follow_flips_and_warps(segmentation: Path) -> None:
    columns = {"image": fs.image(fill=3), "mask": fs.mask(fill=77)}
    outside = 0
    for sample in rows(fs.Dataset(segmentation).map(columns, WARPS)).values():
        border = sample["mask"] == 77
        outside += int(border.sum())
        assert (sample["image"][border] == 3).all()
        assert (sample["image"][~border][:, 0] == sample["mask"][~border] * 13).all()
    assert outside > 1000


def test_vertical_flips_are_pillows(segmentation: Path) -> None:
    columns = {"image": fs.image(), "mask": fs.mask()}
    ops = fs.center_crop((50, 60)), fs.vertical_flip(1.0)
    plain = rows(fs.Dataset(segmentation).map(columns, ops[:1]))
    for identity, sample in rows(fs.Dataset(segmentation).map(columns, ops)).items():
        for name, value in sample.items():
            image = Image.fromarray(plain[identity][name])
            assert (value == np.asarray(image.transpose(Image.Transpose.FLIP_TOP_BOTTOM))).all()


def test_colour_ops_leave_masks(segmentation: Path) -> None:
    colour = fs.grayscale(1.0), fs.gaussian_blur(5), fs.random_apply([fs.solarize(99, 1.0)], 1.0)
    columns = {"image": fs.image(), "mask": fs.mask()}
    plain = rows(fs.Dataset(segmentation).map(columns, OPS[:2]))
    for identity, sample in rows(fs.Dataset(segmentation).map(columns, OPS[:2], colour)).items():
        assert (sample["mask"] == plain[identity]["mask"]).all()
        assert (sample["image"] != plain[identity]["image"]).any()


def test_two_joint_maps_draw_differently_and_each_agrees(segmentation: Path) -> None:
    data = fs.Dataset(segmentation)
    chain = [fs.decode_image(), *OPS[:2]]
    found = rows(
        data.map("image", chain, output="first").map({"image": fs.image(), "mask": fs.mask()}, chain[1:])
    )
    differ = 0
    for sample in found.values():
        assert (sample["image"][..., 0] == sample["mask"] * 13).all()
        differ += (sample["first"] != sample["image"]).any()
    assert differ > ROWS // 2


def test_workers_send_the_same_masks(segmentation: Path, tmp_path: Path) -> None:
    pipeline = fs.Dataset(segmentation).map({"image": fs.image(), "mask": fs.mask()}, OPS)
    local = rows(pipeline)
    serving = worker(segmentation)
    remote = rows(pipeline, workers=serving.address)
    for identity, sample in local.items():
        for name, value in sample.items():
            assert (value == remote[identity][name]).all()


def test_a_mask_of_another_size_is_a_bad_sample(tmp_path: Path) -> None:
    masks = [encode(scene(row)[1]) for row in range(ROWS)]
    masks[5] = encode(Image.new("L", (11, 12)))
    data = fs.Dataset(write(tmp_path, masks))
    pipeline = data.map({"image": fs.image(), "mask": fs.mask()}, OPS).batch(8).epochs(1)
    with pytest.raises(fs.SampleError, match=r"'mask' is 12×11 \(height × width\), and 'image', .* 65×85"):
        list(pipeline.loader(output="numpy"))
    loader = pipeline.on_error("skip", max_fraction=0.1).loader()
    assert sum(int(batch.valid.sum()) for batch in loader) == ROWS - 1


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_grey_is_pillows(mode: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    base = Image.fromarray(generator.integers(0, 256, (20, 30, 3), dtype=np.uint8))
    if mode == "I;16":
        values = generator.integers(0, 65_536, (20, 30), dtype=np.uint16)
        encoded = encode(Image.fromarray(values))
        expected = (values >> 8).astype(np.uint8)  # the high byte, as everywhere here
    else:
        encoded = encode(base.convert(mode), "JPEG" if mode == "CMYK" else "PNG")
        expected = np.asarray(Image.open(io.BytesIO(encoded)).convert("L"))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(encoded)
    chain = [fs.decode_image(mode="gray"), fs.resize((20, 30))]
    batch = next(iter(fs.Dataset(tmp_path).map("image", chain).batch(1).loader(output="numpy")))
    assert batch["image"].shape == (1, 20, 30, 1)
    assert np.abs(batch["image"][0, :, :, 0].astype(int) - expected.astype(int)).max() <= 1


def test_masks_of_colours_are_refused(tmp_path: Path) -> None:
    masks = [encode(scene(row)[1]) for row in range(ROWS)]
    masks[0] = encode(scene(0)[0])
    pipeline = fs.Dataset(write(tmp_path, masks)).map({"image": fs.image(), "mask": fs.mask()}, OPS).batch(24)
    with pytest.raises(
        fs.SampleError, match='the image is RGB, and mode="indices" needs a palette or grey values'
    ):
        next(iter(pipeline.loader()))


def test_mistakes_are_named(segmentation: Path) -> None:
    data = fs.Dataset(segmentation)
    both = {"image": fs.image(), "mask": fs.mask()}
    with pytest.raises(fs.ConfigError, match="rand_augment.*moves pixels of the image"):
        data.map(both, fs.rand_augment(), fs.resize((8, 8)))
    with pytest.raises(fs.ConfigError, match="auto_augment.*moves pixels of the image"):
        data.map(both, fs.random_apply([fs.auto_augment()]), fs.resize((8, 8)))
    with pytest.raises(fs.ConfigError, match="has its fill.*rotate"):
        data.map(both, fs.random_apply([fs.rotate(3, fill=3)]), fs.resize((8, 8)))
    with pytest.raises(fs.ConfigError, match="takes no output"):
        data.map(both, fs.resize((8, 8)), output="x")
    with pytest.raises(fs.ConfigError, match="must have at least one column"):
        data.map({}, fs.resize((8, 8)))
    with pytest.raises(fs.ConfigError, match=r"must be fs.image\(…\), fs.mask\(…\), fs.boxes"):
        data.map({"image": fs.decode_image()}, fs.resize((8, 8)))
    with pytest.raises(fs.ConfigError, match='mode="indices"'):
        fs.mask(fs.decode_image())
    with pytest.raises(fs.ConfigError, match="has its fill.*random_crop"):
        data.map(both, fs.random_crop(8, fill=3))
    with pytest.raises(TypeError, match="ops must be feedstock's"):
        data.map("image", fs.image(), fs.resize((8, 8)))
    for finish in (fs.finish_pictures(flip=0.5), fs.finish_pictures(mix=fs.mixup_cutmix(labels="id"))):
        with pytest.raises(fs.ConfigError, match="'image', which is mapped jointly"):
            data.map(both, fs.resize((8, 8))).batch(8).loader(device="cpu", finish={"image": finish})
    with pytest.raises(fs.ConfigError, match="fill must be at most 255; got 256"):
        fs.mask(fill=256)
    with pytest.raises(fs.ConfigError, match="finish"):
        pipeline = data.map(both, fs.resize((8, 8))).batch(8)
        pipeline.loader(device="cpu", finish={"mask": fs.finish_pictures()})


def test_only_columns_of_one_joint_map_must_have_one_size(tmp_path: Path) -> None:
    """Other maps of the same data have their own sizes."""
    rows_of_two = {
        "id": [0, 1],
        "left": [encode(Image.new("RGB", (67, 41), (row, 0, 0))) for row in range(2)],
        "left_mask": [encode(Image.new("L", (67, 41), row)) for row in range(2)],
        "right": [encode(Image.new("RGB", (50, 50), (0, row, 0))) for row in range(2)],
        "right_mask": [encode(Image.new("L", (50, 50), row)) for row in range(2)],
        "low": [encode(Image.new("L", (13, 7), row)) for row in range(2)],
    }
    pq.write_table(pa.table(rows_of_two), tmp_path / "a.parquet")
    crop = fs.random_resized_crop(16)
    data = fs.Dataset(tmp_path)
    pipeline = (
        data.map("low", fs.decode_image(mode="indices"), fs.resize((7, 13)))
        .map({"left": fs.image(), "left_mask": fs.mask()}, crop)
        .map({"right": fs.image(), "right_mask": fs.mask()}, crop)
    )
    batch = next(iter(pipeline.batch(2).loader(output="numpy")))
    assert batch["low"].shape == (2, 7, 13)
    assert (batch["left_mask"] == np.arange(2)[:, None, None]).all()
    wrong = {"left": fs.image(fs.decode_image(mode="gray")), "right": fs.image()}
    with pytest.raises(
        fs.SampleError, match="'right' is 50×50 .*, and 'left', which is mapped jointly, 41×67"
    ):
        next(iter(data.map(wrong, crop).batch(2).loader()))


def test_an_explicit_fill_of_zero_counts(segmentation: Path) -> None:
    columns = {"image": fs.image(fill=9), "mask": fs.mask(fill=0)}
    found = rows(fs.Dataset(segmentation).map(columns, fs.center_crop((100, 100))))
    for sample in found.values():
        assert (sample["image"][0, 0] == 9).all()
        assert sample["mask"][0, 0] == 0


def chunk(name: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")


@pytest.mark.parametrize(("depth", "colour"), [(8, 2), (8, 4), (8, 6), (16, 0), (16, 2), (16, 6)])
def test_a_second_header_of_a_mask_is_a_bad_sample(depth: int, colour: int, tmp_path: Path) -> None:
    """The first header states a palette. Bytes of colours must not become classes."""
    size = (6).to_bytes(4, "big") + (5).to_bytes(4, "big")
    line = 6 * {0: 1, 2: 3, 4: 2, 6: 4}[colour] * depth // 8
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size + bytes([8, 3, 0, 0, 0]))
    png += chunk(b"IHDR", size + bytes([depth, colour, 0, 0, 0])) + chunk(b"PLTE", bytes(768))
    png += chunk(b"IDAT", zlib.compress((b"\0" + bytes(range(line))) * 5)) + chunk(b"IEND", b"")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(png)
    pipeline = fs.Dataset(tmp_path).map("image", fs.decode_image(mode="indices"), fs.resize((5, 6))).batch(1)
    with pytest.raises(fs.SampleError, match="PNG") as error:
        next(iter(pipeline.loader()))
    assert "panicked" not in str(error.value)


def test_doctor_finds_masks_that_a_joint_map_refuses(tmp_path: Path) -> None:
    masks = [encode(scene(row)[1]) for row in range(ROWS)]
    masks[2] = encode(scene(2)[0])  # colours
    data = fs.Dataset(str(write(tmp_path, masks)))
    assert [column["refused"] for column in data.doctor()["columns"]] == [0, 0]
    columns = {column["column"]: column for column in data.doctor(masks=["mask"])["columns"]}
    assert (columns["image"]["refused"], columns["mask"]["refused"]) == (0, 1)
    assert "needs a palette or grey values" in columns["mask"]["refusals"][0]["reason"]
    with pytest.raises(
        fs.ConfigError, match="'label' is not a column of images; encoded columns: 'image', 'mask'"
    ):
        data.doctor(masks=["label"])


def test_a_null_mask_is_named(tmp_path: Path) -> None:
    masks: list[bytes | None] = [encode(scene(row)[1]) for row in range(ROWS)]
    masks[4] = None
    data = fs.Dataset(str(write(tmp_path, masks)))
    loader = data.map({"image": fs.image(), "mask": fs.mask()}, OPS).batch(8).loader(output="numpy")
    with pytest.raises(fs.SampleError, match=r"a\.parquet row 4.*, column 'mask': the value is null"):
        list(loader)
