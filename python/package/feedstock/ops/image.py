"""Ops on pictures: from encoded bytes to tensors of height × width × channel (RGB), u8 until converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from feedstock.ops._op import Op

Filter = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Interpolation = Literal["nearest", "bilinear"]
Size = int | tuple[int, int]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def _size(size: Size) -> list[int]:
    """Height and width, as torchvision reads a size."""
    return [size, size] if isinstance(size, int) else list(size)


def decode_image(
    *,
    exif_orientation: bool | None = None,
    scaled: bool | None = None,
    max_pixels: int | None = None,
    max_pixels_per_byte: int | None = None,
    max_scans: int | None = None,
    max_scan_blocks: int | None = None,
    max_coefficient_bytes: int | None = None,
    max_huffman_groups: int | None = None,
) -> Op:
    """JPEG, PNG or WebP into u8 [height, width, 3] RGB.

    ``exif_orientation``: turn the picture as its EXIF says (default False, as Pillow's ``Image.open``).
    ``scaled``: let the JPEG decoder halve pictures that are at least four times the target (default True).
    ``max_pixels``: refused before allocation, default 89,478,485 (Pillow's limit); ``max_pixels_per_byte`` likewise,
    for pictures over 4 megapixels, default 1024.

    Three limits apply to JPEGs with several scans, most of which are progressive. ``max_scans``: scans, default 500.
    ``max_scan_blocks``: blocks of 8×8 that all scans visit, default 67,108,864; it bounds the decoding time.
    ``max_coefficient_bytes``: bytes that the decoder keeps between scans, default 805,306,368.

    ``max_huffman_groups``: groups of Huffman codes of a lossless WebP or a WebP's alpha channel, default 2,600, the
    most that libwebp writes; it bounds the memory.

    A picture over a limit is a bad sample, and the error states the limit, the value found and the option. No limit is
    a time, so all ranks and workers accept the same pictures.
    """
    return Op(
        "decode_image",
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
    """Resize to a shorter side of ``size`` pixels, or to exactly (height, width), as torchvision's ``Resize``.

    ``filter``: default bilinear, antialiased, within 1 level of Pillow's.
    """
    return Op("resize", size=size if isinstance(size, int) else list(size), filter=filter)


def center_crop(size: Size) -> Op:
    """Cut ``size`` (or height × width) pixels out of the middle, as torchvision's ``CenterCrop``."""
    return Op("center_crop", size=_size(size))


def random_crop(size: Size, *, padding: int | None = None, pad_if_needed: bool | None = None) -> Op:
    """Cut ``size`` (or height × width) pixels out at random, as torchvision's ``RandomCrop``.

    ``padding``: black pixels added on each side first, default 0. ``pad_if_needed``: pad a smaller picture instead of
    refusing it, default False.
    """
    return Op("random_crop", size=_size(size), padding=padding, pad_if_needed=pad_if_needed)


def random_resized_crop(
    size: Size,
    *,
    scale: tuple[float, float] | None = None,
    ratio: tuple[float, float] | None = None,
    filter: Filter | None = None,
) -> Op:
    """Cut out a random area and aspect ratio and resize it, as torchvision's ``RandomResizedCrop``.

    ``scale``: the crop's share of the area, default (0.08, 1). ``ratio``: width over height, default (3/4, 4/3).
    Behind ``decode_image`` only the crop is decoded.
    """
    return Op("random_resized_crop", size=_size(size), scale=scale, ratio=ratio, filter=filter)


def horizontal_flip(probability: float | None = None) -> Op:
    """Mirror left and right with ``probability``, default 0.5."""
    return Op("horizontal_flip", probability=probability)


def color_jitter(
    brightness: float | None = None,
    contrast: float | None = None,
    saturation: float | None = None,
    hue: float | None = None,
) -> Op:
    """Random brightness, contrast, saturation (each ≥ 0) and hue (0 to 0.5 turns), as torchvision's ``ColorJitter``."""
    return Op("color_jitter", brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)


def rand_augment(
    num_ops: int | None = None,
    magnitude: int | None = None,
    *,
    num_magnitude_bins: int | None = None,
    interpolation: Interpolation | None = None,
    fill: Sequence[int] | None = None,
) -> Op:
    """RandAugment (Cubuk et al. 2020) as torchvision's: ``num_ops`` default 2, ``magnitude`` 9 of 31 bins."""
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
    """TrivialAugment Wide (Müller and Hutter 2021) as torchvision's."""
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
    """Overwrite a random rectangle (Zhong et al. 2017): its area's share ``scale`` default (0.02, 0.33), height over
    width ``ratio`` default (0.3, 3.3), filled with ``value`` (default 0)."""
    return Op("random_erasing", probability=probability, scale=scale, ratio=ratio, value=value)


def normalize(mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> Op:
    """u8 to f32: scaled to 0…1, minus ``mean``, over ``std``, per channel; default ImageNet's."""
    return Op("normalize", mean=mean, std=std)


def to_f32() -> Op:
    """u8 to f32 in 0…1."""
    return Op("to_f32")


def to_chw() -> Op:
    """[height, width, channel] to [channel, height, width], as torch's models take pictures."""
    return Op("to_chw")
