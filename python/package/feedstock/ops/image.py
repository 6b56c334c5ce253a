"""Ops on images: from encoded bytes to tensors [height, width, channels], uint8 (or uint16) until converted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from feedstock.ops._op import Op, flatten

Filter = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Interpolation = Literal["nearest", "bilinear", "bicubic"]
Mode = Literal["rgb", "rgba", "gray", "gray16", "indices"]
PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
Policy = Literal["imagenet", "cifar10", "svhn"]
Size = int | tuple[int, int]
Fill = int | Sequence[int]

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
    """Decodes JPEG, PNG or WebP to uint8 [height, width, 3] RGB, to RGB and alpha, or to one channel.

    An image over a limit is a bad sample, and the error states the limit, the value and the option. No limit is a time,
    so all ranks and workers accept the same images.

    Args:
        mode: What is made of the colours; default ``"rgb"``. ``"rgba"``: [height, width, 4], as Pillow's
            ``convert("RGBA")``. Ops on geometry, ``to_f32`` and ``to_chw`` work on it, padding is transparent (``fill``
            must be 0), and filters average colours by their alpha, as Pillow's ``resize``. ``"gray"``: luma
            [height, width, 1], as Pillow's ``convert("L")``. ``"gray16"``: uint16 [height, width, 1] of a PNG of
            16-bit grey (Pillow's mode ``I;16``), such as a depth map; other images are bad samples. Crops, resizes,
            padding (with ``fill`` · 257), flips, ``to_f32`` (to 0…1) and ``normalize`` work on it. ``"indices"``: a
            mask of classes [height, width], a PNG's palette indices or grey values of at most 8 bits; resizing then
            takes the nearest pixel, and ops on colours do nothing. See ``fs.mask``.
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


def resize(size: Size, *, filter: Filter | None = None, max_size: int | None = None) -> Op:
    """Resizes images, as torchvision's ``Resize``.

    Args:
        size: The shorter side in pixels, or exactly (height, width).
        filter: The antialiased filter; default ``"bilinear"``, whose results are within 1 level of Pillow's.
        max_size: The longest side of the result, if ``size`` is the shorter side: where that would be longer, the
            image becomes smaller; default: no limit.
    """
    return Op("resize", size=size if isinstance(size, int) else list(size), filter=filter, max_size=max_size)


def scale_jitter(
    size: Size, *, scale_range: tuple[float, float] | None = None, filter: Filter | None = None
) -> Op:
    """Resizes by a random factor and keeps the aspect ratio, as torchvision's ``ScaleJitter``.

    Images differ in size after it: ``random_crop(size, pad_if_needed=True)`` may follow.

    Args:
        size: The side of a square, or (height, width), into which the image fits at scale 1. torchvision's
            ``target_size`` is (width, height).
        scale_range: Least and greatest scale; default (0.1, 2).
        filter: The antialiased filter; default ``"bilinear"``.
    """
    return Op("scale_jitter", size=_size(size), scale_range=scale_range, filter=filter)


def random_zoom_out(
    probability: float | None = None,
    *,
    side_range: tuple[float, float] | None = None,
    fill: Fill | None = None,
) -> Op:
    """Puts the image at a random place of a larger canvas, as torchvision's ``RandomZoomOut``.

    Images differ in size after it, so a resize or crop has to follow.

    Args:
        probability: 0 to 1; default 0.5.
        side_range: Least and greatest factor of the sides, at least 1; default (1, 4).
        fill: The value of added pixels, 0 to 255, or one for each channel; default 0.
    """
    return Op("random_zoom_out", probability=probability, side_range=side_range, fill=fill)


def random_iou_crop(
    *,
    min_scale: float | None = None,
    max_scale: float | None = None,
    min_aspect_ratio: float | None = None,
    max_aspect_ratio: float | None = None,
    sampler_options: Sequence[float] | None = None,
    trials: int | None = None,
) -> Op:
    """Cuts out a random part that overlaps a box, as torchvision's ``RandomIoUCrop`` (SSD).

    The crop depends on the sample's boxes at this place of the chain, so the op works only in a joint map with
    ``fs.boxes``. The first boxes of the map draw it; image, masks, keypoints and other boxes follow. Boxes whose centre
    is outside of the part are dropped. An image without boxes stays whole. Images differ in size after it, so a resize
    or crop has to follow.

    Args:
        min_scale: The least share of the image's width and of its height, above 0; default 0.3.
        max_scale: The greatest share, at most 1; default 1.
        min_aspect_ratio: The least width over height of the part; default 0.5.
        max_aspect_ratio: The greatest width over height; default 2.
        sampler_options: The least IoUs of which one is drawn: at least one box whose centre is in the part overlaps it
            with at least this IoU. From 1 on, the image stays whole. Default (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1).
        trials: Trials before another option is drawn, 1 to 1,000; default 40. After 100 draws of an option, the image
            stays whole; torchvision would go on.
    """
    return Op(
        "random_iou_crop",
        min_scale=min_scale,
        max_scale=max_scale,
        min_aspect_ratio=min_aspect_ratio,
        max_aspect_ratio=max_aspect_ratio,
        sampler_options=None if sampler_options is None else list(sampler_options),
        trials=trials,
    )


def pad_to(size: Size, *, fill: Fill | None = None) -> Op:
    """Adds pixels on the right and below up to a square of ``size`` pixels, or (height, width).

    Args:
        size: The side in pixels, or (height, width). A larger image is a bad sample: resize it first, with
            ``resize(800, max_size=1333)`` for example.
        fill: The value of added pixels, 0 to 255, or one for each channel; default 0.
    """
    return Op("pad_to", size=_size(size), fill=fill)


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


def vertical_flip(probability: float | None = None) -> Op:
    """Mirrors images top to bottom with a probability; default 0.5. As torchvision's ``RandomVerticalFlip``."""
    return Op("vertical_flip", probability=probability)


def pad(
    padding: int | Sequence[int], *, fill: Fill | None = None, padding_mode: PaddingMode | None = None
) -> Op:
    """Adds pixels around images, as torchvision's ``Pad``.

    Args:
        padding: Pixels on every side; (left and right, top and bottom); or (left, top, right, bottom).
        fill: The value of added pixels, 0 to 255, or one for each channel; default 0.
        padding_mode: What added pixels show: ``"constant"`` (default; ``fill``), ``"edge"`` (the nearest pixel),
            ``"reflect"`` (the image mirrored, without its outermost pixels) or ``"symmetric"`` (with them).
    """
    return Op("pad", padding=padding, fill=fill, padding_mode=padding_mode)


def rotate(
    degrees: float | tuple[float, float],
    *,
    interpolation: Interpolation | None = None,
    center: tuple[float, float] | None = None,
    fill: Fill | None = None,
    expand: bool | None = None,
) -> Op:
    """Turns images by a random angle, as torchvision's ``RandomRotation``.

    Args:
        degrees: The least and the greatest angle, counter-clockwise, -360 to 360; one number d is (-d, d).
        interpolation: How images are read between pixels; default ``"nearest"``. Masks: always nearest.
        center: The point that stays, (x, y) in pixels from the top left corner; default: the middle.
        fill: The value outside of the image, 0 to 255, or one for each channel; default 0.
        expand: The image becomes large enough to show all of it; then ``center`` must be None, and a resize or crop has
            to follow, since images differ in size. Default False: the size stays.
    """
    return Op("rotate", degrees=degrees, interpolation=interpolation, center=center, fill=fill, expand=expand)


def affine(
    degrees: float | tuple[float, float],
    *,
    translate: tuple[float, float] | None = None,
    scale: tuple[float, float] | None = None,
    shear: float | Sequence[float] | None = None,
    interpolation: Interpolation | None = None,
    fill: Fill | None = None,
    center: tuple[float, float] | None = None,
) -> Op:
    """Turns, moves, scales and shears images at random, as torchvision's ``RandomAffine``: the size stays.

    Args:
        degrees: The least and the greatest angle, clockwise, -360 to 360; one number d is (-d, d).
        translate: The largest moves to either side, and up or down, in fractions of width and height; default (0, 0).
        scale: The least and the greatest scale; default (1, 1).
        shear: The least and the greatest shear along x, and possibly along y, in degrees: two or four numbers; one
            number s is (-s, s) along x. Default 0.
        interpolation: How images are read between pixels; default ``"nearest"``. Masks: always nearest.
        fill: The value outside of the image, 0 to 255, or one for each channel; default 0.
        center: The point that stays, (x, y) in pixels from the top left corner; default: the middle.
    """
    return Op(
        "affine",
        degrees=degrees,
        translate=translate,
        scale=scale,
        shear=shear,
        interpolation=interpolation,
        fill=fill,
        center=center,
    )


def perspective(
    distortion_scale: float | None = None,
    probability: float | None = None,
    *,
    interpolation: Interpolation | None = None,
    fill: Fill | None = None,
) -> Op:
    """Shows images from a random side, as torchvision's ``RandomPerspective``: the size stays.

    Args:
        distortion_scale: How far corners move inwards: at most half of this share of the sides; default 0.5.
        probability: The probability; default 0.5.
        interpolation: How images are read between pixels; default ``"bilinear"``. Masks: always nearest.
        fill: The value outside of the image, 0 to 255, or one for each channel; default 0.
    """
    return Op(
        "perspective",
        distortion_scale=distortion_scale,
        probability=probability,
        interpolation=interpolation,
        fill=fill,
    )


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


def grayscale(probability: float | None = None) -> Op:
    """Removes the colors with a probability, default 0.1, as torchvision's ``RandomGrayscale``.

    The image keeps its three channels. For one channel, see ``decode_image(mode="gray")``.
    """
    return Op("grayscale", probability=probability)


def gaussian_blur(kernel_size: int, sigma: float | tuple[float, float] | None = None) -> Op:
    """Blurs images, as torchvision's ``GaussianBlur``. To blur some images only, use ``random_apply``.

    Args:
        kernel_size: The side of the kernel in pixels, an odd number from 1 to 511.
        sigma: The standard deviation in pixels, or the range from which it is drawn uniformly; default (0.1, 2).
    """
    return Op("gaussian_blur", kernel_size=kernel_size, sigma=sigma)


def adjust_sharpness(sharpness_factor: float, probability: float | None = None) -> Op:
    """Smooths or sharpens images with a probability, as torchvision's ``RandomAdjustSharpness``.

    Args:
        sharpness_factor: At least 0: 0 smooths, 1 changes nothing, 2 doubles the sharpness.
        probability: The probability; default 0.5.
    """
    return Op("adjust_sharpness", sharpness_factor=sharpness_factor, probability=probability)


def solarize(threshold: float, probability: float | None = None) -> Op:
    """Inverts values of at least ``threshold``, 0 to 256, with a probability, as torchvision's ``RandomSolarize``.

    The default probability is 0.5.
    """
    return Op("solarize", threshold=threshold, probability=probability)


def posterize(bits: int, probability: float | None = None) -> Op:
    """Keeps the ``bits`` highest bits of values, 1 to 8, with a probability, as torchvision's ``RandomPosterize``.

    The default probability is 0.5.
    """
    return Op("posterize", bits=bits, probability=probability)


def equalize(probability: float | None = None) -> Op:
    """Flattens the histograms with a probability, default 0.5, as torchvision's ``RandomEqualize``."""
    return Op("equalize", probability=probability)


def autocontrast(probability: float | None = None) -> Op:
    """Stretches channels to 0…255 with a probability, default 0.5, as torchvision's ``RandomAutocontrast``."""
    return Op("autocontrast", probability=probability)


def invert(probability: float | None = None) -> Op:
    """Inverts the colors with a probability, default 0.5, as torchvision's ``RandomInvert``."""
    return Op("invert", probability=probability)


def random_apply(ops: Op | Iterable[Op | Iterable[Op]], probability: float | None = None) -> Op:
    """Runs several ops with a probability, as torchvision's ``RandomApply``.

    ``fs.random_apply([fs.color_jitter(0.8, 0.8, 0.8, 0.2)], 0.8)`` is a step of SimCLR. Each of the ops draws from a
    separate generator, so its draws do not depend on the probability. On the command line, the ops are in brackets:
    ``random_apply:[color_jitter:0.8:0.8:0.8:0.2]:0.8``.

    Args:
        ops: The ops, run in order. They must keep the image's size and type: flips, color ops, ``rotate``,
            ``affine``, ``perspective``, augmentations, ``random_apply`` and ``random_choice``.
        probability: The probability; default 0.5.
    """
    return Op("random_apply", ops=_inner(ops), probability=probability)


def random_choice(ops: Iterable[Op | Iterable[Op]], *, probabilities: Sequence[float] | None = None) -> Op:
    """Runs one of several ops, as torchvision's ``RandomChoice``.

    Args:
        ops: The ops, which must keep the image's size and type, as those of ``random_apply``. To run several ops as
            one, use ``fs.random_apply(ops, 1.0)``.
        probabilities: A weight for each op, at least 0; default: all are equally likely.
    """
    ops = list(ops)
    if not all(isinstance(op, Op) for op in ops):
        raise TypeError(
            f"random_choice must be given ops; got {ops!r}. fs.random_apply(ops, 1.0) is several ops"
        )
    return Op("random_choice", ops=_inner(ops), probabilities=probabilities)


def _inner(ops: Op | Iterable[Op | Iterable[Op]]) -> list[dict[str, Any]]:
    """Returns the descriptions of ops that are a parameter."""
    return [json.loads(op.to_json()) for op in flatten([ops] if isinstance(ops, Op) else ops)]


def auto_augment(
    policy: Policy | None = None, *, interpolation: Interpolation | None = None, fill: Fill | None = None
) -> Op:
    """AutoAugment (Cubuk et al. 2019), as torchvision's.

    Args:
        policy: The data set that the policy was learned on: ``"imagenet"`` (default), ``"cifar10"`` or ``"svhn"``.
        interpolation: The interpolation of geometric transforms; default ``"nearest"``.
        fill: The value outside of the image, 0 to 255, or one for each channel; default 0.
    """
    return Op("auto_augment", policy=policy, interpolation=interpolation, fill=fill)


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


def timm_rand_augment(
    magnitude: float | None = None,
    *,
    magnitude_std: float | None = None,
    num_layers: int | None = None,
    increasing: bool | None = None,
    probability: float | None = None,
    translate_pct: float | None = None,
    interpolation: Interpolation | None = None,
    fill: Fill | None = None,
) -> Op:
    """RandAugment as timm's. The defaults are ``rand-m9-mstd0.5-inc1``, as its ``create_transform`` makes it.

    Args:
        magnitude: The mean of the magnitudes, 0 to 10; default 9 (``m9``).
        magnitude_std: Their standard deviation, 0 to 100; default 0.5 (``mstd0.5``). Magnitudes are limited to 0…10.
        num_layers: Transforms drawn for each image, 0 to 16; default 2 (``n2``).
        increasing: Whether a greater magnitude always is a stronger change; default ``True`` (``inc1``).
        probability: The probability of each drawn transform; default 0.5 (``p0.5``).
        translate_pct: The largest move, as a share of the side; default 0.45.
        interpolation: The interpolation of geometric transforms; default: bilinear or bicubic, drawn for each.
        fill: The value outside of the image, 0 to 255, or one for each channel; default (124, 116, 104), the mean of
            ImageNet. Images of one channel need one number.
    """
    return Op(
        "timm_rand_augment",
        magnitude=magnitude,
        magnitude_std=magnitude_std,
        num_layers=num_layers,
        increasing=increasing,
        probability=probability,
        translate_pct=translate_pct,
        interpolation=interpolation,
        fill=fill,
    )


def aug_mix(
    severity: int | None = None,
    *,
    mixture_width: int | None = None,
    chain_depth: int | None = None,
    alpha: float | None = None,
    all_ops: bool | None = None,
    interpolation: Interpolation | None = None,
    fill: Fill | None = None,
) -> Op:
    """AugMix (Hendrycks et al. 2020), as torchvision's: a weighted sum of the image and of augmented images.

    Args:
        severity: Magnitudes are drawn from the first ``severity`` of 10; default 3.
        mixture_width: The number of augmented images, 1 to 16; default 3.
        chain_depth: Transforms of each of them, 1 to 16; default -1, which draws 1 to 3.
        alpha: The concentration of the distributions of weights; default 1.
        all_ops: Whether brightness, contrast, color and sharpness are among the transforms; default ``True``.
        interpolation: The interpolation of geometric transforms; default ``"bilinear"``.
        fill: The value outside of the image, 0 to 255, or one for each channel; default 0.
    """
    return Op(
        "aug_mix",
        severity=severity,
        mixture_width=mixture_width,
        chain_depth=chain_depth,
        alpha=alpha,
        all_ops=all_ops,
        interpolation=interpolation,
        fill=fill,
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
    """Converts uint8 or uint16 to float32: scaled to 0…1, minus ``mean``, divided by ``std``, for each channel.

    Args:
        mean: One value for each channel; default: ImageNet's.
        std: One value for each channel; default: ImageNet's.
    """
    return Op("normalize", mean=mean, std=std)


def to_f32() -> Op:
    """Converts uint8 or uint16 to float32 in 0…1."""
    return Op("to_f32")


def to_chw() -> Op:
    """Transposes [height, width, channel] to [channel, height, width], the layout of torch's models."""
    return Op("to_chw")
