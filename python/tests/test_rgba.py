"""Images with alpha, against Pillow's ``convert("RGBA")``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from served import worker

import feedstock as fs

HEIGHT, WIDTH = 37, 52
RGBA = fs.decode_image(mode="rgba", scaled=False)


def picture() -> Image.Image:
    """Returns smooth colours with noise, and alpha from 0 to 255."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    noise = np.random.default_rng(7).integers(0, 40, (HEIGHT, WIDTH, 4))
    base = np.stack([x * 4, y * 5, 200 - x * 3, np.clip(x * 9 - 100, 0, 215)], axis=2)
    return Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of files that Pillow wrote, one in each way of storing transparency, or none."""
    folder = tmp_path_factory.mktemp("alpha") / "a"
    folder.mkdir()
    rgba = picture()
    grey = rgba.convert("LA")
    palette = rgba.convert("RGB").quantize(16)
    rgba.save(folder / "rgba.png")
    grey.save(folder / "la.png")
    palette.save(folder / "p.png")
    palette.save(folder / "p_one.png", transparency=3)
    palette.save(folder / "p_each.png", transparency=bytes(range(0, 256, 16)))
    rgba.convert("RGB").save(folder / "rgb.png")
    rgba.convert("RGB").save(folder / "rgb_key.png", transparency=rgba.convert("RGB").getpixel((5, 5)))
    grey.convert("L").save(folder / "l_key.png", transparency=grey.convert("L").getpixel((5, 5)))
    rgba.save(folder / "lossless.webp", lossless=True, exact=True)
    rgba.save(folder / "lossy.webp", quality=80)
    rgba.convert("RGB").save(folder / "opaque.webp")
    rgba.convert("RGB").save(folder / "rgb.jpg", quality=90)
    rgba.convert("L").save(folder / "l.jpg", quality=90)
    rgba.convert("RGB").convert("CMYK").save(folder / "cmyk.jpg", quality=90)
    return folder.parent


def theirs(files: Path) -> list[Image.Image]:
    return [Image.open(path).convert("RGBA") for path in sorted((files / "a").iterdir())]


def ours(files: Path, *ops: fs.Op) -> np.ndarray:
    pipeline = fs.Dataset(files).map("image", RGBA, *ops).batch(len(theirs(files)))
    return next(iter(pipeline.loader(output="numpy")))["image"]


def weighted(image: np.ndarray) -> np.ndarray:
    """Returns alpha and the colours as they show: hardly visible pixels hardly count."""
    values = image.astype(float)
    return np.concatenate([values[:, :, :3] * values[:, :, 3:] / 255, values[:, :, 3:]], axis=2)


def test_decoding_is_pillows(files: Path) -> None:
    decoded = ours(files, fs.center_crop((HEIGHT, WIDTH)))
    assert decoded.shape == (14, HEIGHT, WIDTH, 4)
    assert decoded.dtype == np.uint8
    names = sorted(path.name for path in (files / "a").iterdir())
    for name, image, expected in zip(names, decoded, theirs(files), strict=True):
        difference = np.abs(image.astype(int) - np.asarray(expected).astype(int))
        assert difference.max() <= (0 if name.endswith("png") or name == "lossless.webp" else 1), name
    assert (
        sum(expected.getextrema()[3][0] < 255 for expected in theirs(files)) == 8
    )  # of 14, as many are transparent


@pytest.mark.parametrize("name", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(20, 31), (80, 60), (90, 20)])
def test_resizing_is_pillows(files: Path, name: str, size: tuple[int, int]) -> None:
    resized = ours(files, fs.resize(size, filter=name))
    for number, (image, picture) in enumerate(zip(resized, theirs(files), strict=True)):
        expected = np.asarray(picture.resize(size[::-1], Image.Resampling[name.upper()]))
        difference = np.abs(weighted(image) - weighted(expected))
        # One level of each pass of the filter, or one of the division by alpha.
        assert difference.max() <= 2, (name, size, number)
        assert (difference[:, :, 3] > 1).mean() < 0.001, (name, size, number)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_rotating_is_pillows(files: Path, interpolation: str) -> None:
    ops = [fs.rotate((30, 30), interpolation=interpolation), fs.center_crop((HEIGHT, WIDTH))]
    resample = Image.Resampling[interpolation.upper()]
    for number, (image, picture) in enumerate(zip(ours(files, *ops), theirs(files), strict=True)):
        difference = np.abs(weighted(image) - weighted(np.asarray(picture.rotate(30, resample))))
        assert difference.max() <= 2, number
        assert image[0, 0].tolist() == [0, 0, 0, 0]


def test_colors_and_alpha_have_the_same_draws(files: Path) -> None:
    ops = (
        fs.random_resized_crop(24),
        fs.horizontal_flip(),
        fs.random_apply([fs.affine((0, 0), translate=(0.2, 0.2))]),
    )
    with_alpha = ours(files, *ops)
    pipeline = fs.Dataset(files).map("image", fs.decode_image(scaled=False), *ops).batch(len(with_alpha))
    without = next(iter(pipeline.loader(output="numpy")))["image"]
    names = sorted(path.name for path in (files / "a").iterdir())
    for name, rgba, rgb in zip(names, with_alpha, without, strict=True):
        if name in (
            "rgb.png",
            "rgb.jpg",
            "l.jpg",
            "cmyk.jpg",
            "opaque.webp",
            "p.png",
        ):  # opaque, but for padding
            shown = rgba[:, :, 3] == 255
            assert (rgba[:, :, :3] == rgb)[shown].all(), name
            assert shown.any(), name


def test_torch_gets_four_channels(files: Path) -> None:
    pipeline = fs.Dataset(files).map("image", RGBA, fs.resize((8, 9)), fs.to_f32(), fs.to_chw()).batch(4)
    image = next(iter(pipeline.loader(output="torch")))["image"]
    assert image.shape == (4, 4, 8, 9)
    assert image.dtype == torch.float32
    assert image.min() >= 0
    assert image.max() <= 1


def test_a_joint_map_and_a_worker_make_the_same_bytes(files: Path) -> None:
    pipeline = (
        fs.Dataset(files)
        .map({"image": fs.image(RGBA)}, fs.random_resized_crop(16, filter="bicubic"))
        .shuffle(seed=7)
        .batch(7)
    )
    local = [batch["image"] for batch in pipeline.loader(output="numpy")]
    serving = worker(files)
    remote = [batch["image"] for batch in pipeline.loader(output="numpy", workers=serving.address)]
    assert len(local) == len(remote) == 2
    assert all((a == b).all() for a, b in zip(local, remote, strict=True))


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([fs.color_jitter(0.4), fs.resize(8)], r"color_jitter.*works on colours without alpha"),
        ([fs.resize((8, 8)), fs.normalize()], r"normalize.*to_f32 converts all four"),
        ([fs.pad(2, fill=7), fs.resize((8, 8))], r"pad.*fill must be 0"),
        ([fs.views({"a": [fs.resize((8, 8))]})], r"have no views"),
    ],
)
def test_what_alpha_does_not_have_is_refused(files: Path, ops: list[fs.Op], message: str) -> None:
    with pytest.raises(fs.ConfigError, match=message):
        next(iter(fs.Dataset(files).map("image", RGBA, *ops).batch(1).loader()))


def test_gpus_decode_no_alpha(files: Path) -> None:
    pipeline = fs.Dataset(files).map("image", RGBA, fs.random_resized_crop(16)).batch(1)
    with pytest.raises(fs.ConfigError, match="a GPU decodes for chains"):
        pipeline.loader(device="cpu", nvjpeg=0.5)
