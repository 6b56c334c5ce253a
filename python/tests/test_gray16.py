"""Images of 16-bit grey, such as depth maps, against Pillow."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from served import worker

import feedstock as fs

HEIGHT, WIDTH, IMAGES = 37, 52, 6
WIDE = fs.decode_image(mode="gray16")


def depth(number: int) -> Image.Image:
    """Returns a slope with noise, in which the low byte matters."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    noise = np.random.default_rng(number).integers(0, 3000, (HEIGHT, WIDTH))
    return Image.fromarray((y * 900 + x * 500 + noise + number).astype(np.uint16))


@pytest.fixture(scope="module")
def depths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("depths")
    (folder / "a").mkdir()
    for number in range(IMAGES):
        depth(number).save(folder / "a" / f"{number}.png")
    return folder


def batch_of(pipeline: fs.Pipeline) -> np.ndarray:
    return next(iter(pipeline.batch(IMAGES).loader(output="numpy")))["image"]


def resized(image: Image.Image, size: tuple[int, int], filter: Image.Resampling) -> Image.Image:
    if filter != Image.Resampling.NEAREST:
        return image.resize(size, filter)
    # Pillow 13 takes other pixels of ``I;16`` than of 8 bits where two are equally near.
    values = np.asarray(image)
    high, low = (
        Image.fromarray(byte.astype(np.uint8)).resize(size, filter) for byte in (values >> 8, values & 255)
    )
    return Image.fromarray(np.asarray(high).astype(np.uint16) * 256 + np.asarray(low))


@pytest.mark.parametrize("name", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(20, 31), (80, 60), (90, 20), (HEIGHT, WIDTH)])
def test_resizing_is_pillows(depths: Path, name: str, size: tuple[int, int]) -> None:
    ours = batch_of(fs.Dataset(depths).map("image", WIDE, fs.resize(size, filter=name)))
    assert ours.shape == (IMAGES, *size, 1)
    assert ours.dtype == np.uint16
    for number, image in enumerate(ours):
        theirs = resized(depth(number), size[::-1], Image.Resampling[name.upper()])
        difference = np.abs(image[:, :, 0].astype(int) - np.asarray(theirs).astype(int))
        assert difference.max() <= 1, (name, size, number)


def test_crops_resize_as_the_crop_of_the_image(depths: Path) -> None:
    ours = batch_of(fs.Dataset(depths).map("image", WIDE, fs.center_crop(30), fs.resize((12, 12))))
    left, top = (WIDTH - 30) // 2, round((HEIGHT - 30) / 2)
    for number, image in enumerate(ours):
        crop = depth(number).crop((left, top, left + 30, top + 30))
        theirs = np.asarray(crop.resize((12, 12), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(image[:, :, 0].astype(int) - theirs).max() <= 1


def test_a_worker_and_torch_and_arrow_have_the_same_values(depths: Path) -> None:
    pipeline = fs.Dataset(depths).map("image", WIDE, fs.random_resized_crop(16)).shuffle(seed=3).batch(IMAGES)
    with pipeline.loader(output="torch") as loader:
        tensor = next(iter(loader))["image"]
    assert tensor.dtype == torch.uint16
    serving = worker(depths)
    with pipeline.loader(workers=serving.address, output="batch") as loader:
        batch = next(iter(loader))
        assert (batch["image"].numpy() == tensor.numpy()).all()
        column = pa.record_batch(batch).column("image")
    assert str(column.type.value_type) == "uint16"
    assert (column.to_numpy_ndarray() == tensor.numpy()).all()


def test_an_image_goes_with_its_depth(tmp_path: Path) -> None:
    """Both get one crop: the depth is the image's high byte."""

    def png(image: Image.Image) -> bytes:
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return buffer.getvalue()

    depths = [depth(number) for number in range(IMAGES)]
    high = [Image.fromarray((np.asarray(one) >> 8).astype(np.uint8)).convert("RGB") for one in depths]
    table = pa.table({"image": [png(one) for one in high], "depth": [png(one) for one in depths]})
    pq.write_table(table, tmp_path / "a.parquet")
    columns = {"image": fs.image(), "depth": fs.image(WIDE)}
    pipeline = fs.Dataset(tmp_path).map(columns, fs.random_crop(20), fs.horizontal_flip())
    batch = next(iter(pipeline.batch(IMAGES).loader(output="numpy")))
    assert (batch["depth"] >> 8 == batch["image"][..., :1]).all()
    assert len({image.tobytes() for image in batch["image"]}) == IMAGES


def test_other_images_and_ops_on_colors_are_refused(tmp_path: Path, depths: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "a" / "x.png")
    with pytest.raises(
        fs.SampleError, match=r'x\.png.*the image is L, and mode="gray16" needs a PNG of 16-bit grey'
    ):
        next(iter(fs.Dataset(tmp_path).map("image", WIDE, fs.resize((8, 8))).batch(1).loader()))
    with pytest.raises(fs.ConfigError, match="color_jitter.*works on 8 bits a channel"):
        fs.Dataset(depths).map("image", WIDE, fs.color_jitter(0.4), fs.resize((8, 8)))
