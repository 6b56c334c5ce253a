"""Ops on images: from encoded bytes to tensors [height, width, channels], uint8 until converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from feedstock.ops._op import Op

Filter = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Interpolation = Literal["nearest", "bilinear"]
Mode = Literal["rgb", "gray", "indices"]
Size = int | tuple[int, int]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def _size(size: Size) -> list[int]:
    """Returns height and width, as torchvision interprets a size."""
    return [size, size] if isinstance(size, int) else list(size)


def decode_image(
    *,
    mode: Mode | None = None,
    exif_orientation: bool | None = None,
    scaled: bool | None = None,
    max_pixels: int | None = None,
    max_pixels_per_byte: int | None = None,
    max_scans: int | None = None,
    max_scan_blocks: int | None = None,
    max_coefficient_bytes: int | None = None,
    max_huffman_groups: int | None = None,
) -> Op:
    """Decodes JPEG, PNG or WebP to uint8 [height, width, 3] RGB, or to one channel.

    An image over a limit is a bad sample, and the error states the limit, the value and the option. No limit is a time,
    so all ranks and workers accept the same images.

    Args:
        mode: What is made of the colours; default ``"rgb"``. ``"gray"``: luma [height, width, 1], as Pillow's
            ``convert("L")``. ``"indices"``: a mask of classes [height, width], a PNG's palette indices or grey values
            of at most 8 bits; resizing then takes the nearest pixel, and ops on colours do nothing. See ``fs.mask``.
        exif_orientation: Whether to rotate the image by its EXIF; default ``False``, as Pillow's ``Image.open``.
        scaled: Whether the JPEG decoder may halve images of at least four times the target size; default ``True``.
        max_pixels: Pixels, checked before allocation; default 89,478,485 (Pillow's limit).
        max_pixels_per_byte: Pixels for each encoded byte, for images over 4 megapixels; default 1,024.
        max_scans: Scans of a JPEG; default 500. JPEGs with several scans are mostly progressive.
        max_scan_blocks: Blocks of 8×8 pixels that all scans of a JPEG visit; default 67,108,864. Bounds the time.
        max_coefficient_bytes: Bytes that the decoder keeps between the scans of a JPEG; default 805,306,368.
        max_huffman_groups: Groups of Huffman codes of a lossless WebP or a WebP's alpha channel; default 2,600, the
            most that libwebp writes. Bounds the memory.
    """
    return Op(
        "decode_image",
        mode=mode,
        exif_orientation=exif_orientation,
        scaled=scaled,
        max_pixels=max_pixels,
        max_pixels_per_byte=max_pixels_per_byte,
        max_scans=max_scans,
        max_scan_blocks=max_scan_blocks,
        max_coefficient_bytes=max_coefficient_bytes,
        max_huffman_groups=max_huffman_groups,
    )


def resize(size: Size, *, filter: Filter | None = None) -> Op:
    """Resizes images, as torchvision's ``Resize``.

    Args:
        size: The shorter side in pixels, or exactly (height, width).
        filter: The antialiased filter; default ``"bilinear"``, whose results are within 1 level of Pillow's.
    """
    return Op("resize", size=size if isinstance(size, int) else list(size), filter=filter)


def center_crop(size: Size, *, fill: int | None = None) -> Op:
    """Cuts a square of ``size`` pixels, or (height, width), out of the middle, as torchvision's ``CenterCrop``.

    Args:
        size: The side in pixels, or (height, width). Smaller images are padded.
        fill: The value of added pixels in every channel, 0 to 255; default 0.
    """
    return Op("center_crop", size=_size(size), fill=fill)


def random_crop(
    size: Size, *, padding: int | None = None, pad_if_needed: bool | None = None, fill: int | None = None
) -> Op:
    """Cuts a square of ``size`` pixels, or (height, width), out at random, as torchvision's ``RandomCrop``.

    Args:
        size: The side in pixels, or (height, width).
        padding: Pixels that are added on each side first; default 0.
        pad_if_needed: Whether to pad smaller images, which are bad samples otherwise; default ``False``.
        fill: The value of added pixels in every channel, 0 to 255; default 0.
    """
    return Op("random_crop", size=_size(size), padding=padding, pad_if_needed=pad_if_needed, fill=fill)


def random_resized_crop(
    size: Size,
    *,
    scale: tuple[float, float] | None = None,
    ratio: tuple[float, float] | None = None,
    filter: Filter | None = None,
) -> Op:
    """Cuts out a random area and aspect ratio and resizes it, as torchvision's ``RandomResizedCrop``.

    Directly after ``decode_image``, only the crop is decoded.

    Args:
        size: The resulting side in pixels, or (height, width).
        scale: The crop's share of the area; default (0.08, 1).
        ratio: Width divided by height; default (3/4, 4/3).
        filter: The antialiased filter; default ``"bilinear"``.
    """
    return Op("random_resized_crop", size=_size(size), scale=scale, ratio=ratio, filter=filter)


def horizontal_flip(probability: float | None = None) -> Op:
    """Mirrors images left to right with a probability; default 0.5."""
    return Op("horizontal_flip", probability=probability)


def color_jitter(
    brightness: float | None = None,
    contrast: float | None = None,
    saturation: float | None = None,
    hue: float | None = None,
) -> Op:
    """Changes brightness, contrast, saturation (each ≥ 0) and hue (0 to 0.5 turns) at random.

    As torchvision's ``ColorJitter``.
    """
    return Op("color_jitter", brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)


def rand_augment(
    num_ops: int | None = None,
    magnitude: int | None = None,
    *,
    num_magnitude_bins: int | None = None,
    interpolation: Interpolation | None = None,
    fill: Sequence[int] | None = None,
) -> Op:
    """RandAugment (Cubuk et al. 2020), as torchvision's.

    Args:
        num_ops: Transforms of each image; default 2.
        magnitude: Their magnitude; default 9.
        num_magnitude_bins: The number of magnitudes; default 31.
        interpolation: The interpolation of geometric transforms; default ``"nearest"``.
        fill: The color outside of the image; default: black.
    """
    return Op(
        "rand_augment",
        num_ops=num_ops,
        magnitude=magnitude,
        num_magnitude_bins=num_magnitude_bins,
        interpolation=interpolation,
        fill=fill,
    )


def trivial_augment(
    *,
    num_magnitude_bins: int | None = None,
    interpolation: Interpolation | None = None,
    fill: Sequence[int] | None = None,
) -> Op:
    """TrivialAugment Wide (Müller and Hutter 2021), as torchvision's.

    Args:
        num_magnitude_bins: The number of magnitudes; default 31.
        interpolation: The interpolation of geometric transforms; default ``"nearest"``.
        fill: The color outside of the image; default: black.
    """
    return Op(
        "trivial_augment", num_magnitude_bins=num_magnitude_bins, interpolation=interpolation, fill=fill
    )


def random_erasing(
    probability: float | None = None,
    *,
    scale: tuple[float, float] | None = None,
    ratio: tuple[float, float] | None = None,
    value: float | Sequence[float] | Literal["random"] | None = None,
) -> Op:
    """Overwrites a random rectangle (Zhong et al. 2017), as torchvision's ``RandomErasing``.

    Args:
        probability: The probability; default 0.5.
        scale: The rectangle's share of the area; default (0.02, 0.33).
        ratio: Height divided by width; default (0.3, 3.3).
        value: The value that fills it; default 0.
    """
    return Op("random_erasing", probability=probability, scale=scale, ratio=ratio, value=value)


def normalize(mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> Op:
    """Converts uint8 to float32: scaled to 0…1, minus ``mean``, divided by ``std``, for each channel.

    Args:
        mean: One value for each channel; default: ImageNet's.
        std: One value for each channel; default: ImageNet's.
    """
    return Op("normalize", mean=mean, std=std)


def to_f32() -> Op:
    """Converts uint8 to float32 in 0…1."""
    return Op("to_f32")


def to_chw() -> Op:
    """Transposes [height, width, channel] to [channel, height, width], the layout of torch's models."""
    return Op("to_chw")
