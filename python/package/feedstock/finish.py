"""Finishing: work on a column that the loader's device does, so that only 8-bit pixels are copied to it.

    loader = pipeline.loader(
        device="cuda", finish={"image": fs.finish_pictures("bfloat16", layout="channels_last", flip=0.5)}
    )

Kernels on the device do the work; they are compiled when they are first used. Without a device, the CPU does it in host
memory. The results are those of the same ops at the end of ``map``, rounded to the requested dtype, so leave these ops
out of ``map``.
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any, Literal

from feedstock import _feedstock
from feedstock.errors import ConfigError
from feedstock.ops import Op

__all__ = ["Finish", "MixupCutmix", "finish_features", "finish_pictures", "mixup_cutmix"]

_Type = Literal["float32", "float16", "bfloat16"]


class _Described:
    """A description in JSON: equal and hashable by content, and picklable."""

    __slots__ = ("_json",)

    def __init__(self, text: str) -> None:
        self._json = text

    def to_json(self) -> str:
        """Returns the description."""
        return self._json

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and json.loads(self._json) == json.loads(other._json)

    def __hash__(self) -> int:
        return hash(json.dumps(json.loads(self._json), sort_keys=True))

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return type(self), (self._json,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._json})"


class Finish(_Described):
    """How a column is finished. Made by ``finish_pictures`` and ``finish_features``."""


class MixupCutmix(_Described):
    """How the rows of a batch are mixed. Made by ``mixup_cutmix``."""


def mixup_cutmix(
    *,
    mixup_alpha: float = 0.2,
    cutmix_alpha: float = 1.0,
    probability: float = 1.0,
    switch_probability: float = 0.5,
    labels: str = "label",
) -> MixupCutmix:
    """Mixup (Zhang et al., ICLR 2018) and CutMix (Yun et al., ICCV 2019) over the rows of a batch.

    Every row is mixed with the row before it, by one weight for the batch, as torchvision's ``MixUp`` and ``CutMix``
    do. Weight and box are functions of (seed, epoch, position), so all ranks draw the same.

    The batch gets two columns: ``<labels>_partner``, the label of the row that was mixed in, and ``mix_weight``
    (float32 [rows]), the weight of the row's own label. The loss is
    ``w * loss(y, label) + (1 - w) * loss(y, label_partner)``.

    Args:
        mixup_alpha: Mixup draws its weights from Beta(alpha, alpha); 0 turns it off; default 0.2.
        cutmix_alpha: CutMix draws the areas that it keeps from Beta(alpha, alpha); 0 turns it off; default 1.
        probability: The share of batches that are mixed; default 1.
        switch_probability: If both are on: the share of mixed batches that get CutMix; default 0.5.
        labels: The column of labels; default ``"label"``.

    Example:
        >>> finish = fs.finish_pictures(mix=fs.mixup_cutmix(mixup_alpha=0.4, cutmix_alpha=0))
        >>> data = fs.Dataset(images, columns=["image", "label"])
        >>> pipeline = data.map("image", fs.decode_image(), fs.resize((8, 8))).batch(4)
        >>> batch = next(iter(pipeline.loader(device="cpu", finish={"image": finish})))
        >>> batch["image"].shape, batch["mix_weight"].shape, sorted(batch)
        ((4, 3, 8, 8), (4,), ['image', 'label', 'label_partner', 'mix_weight'])
    """
    return MixupCutmix(
        json.dumps(
            {
                "mixup_alpha": mixup_alpha,
                "cutmix_alpha": cutmix_alpha,
                "probability": probability,
                "switch_probability": switch_probability,
                "labels": labels,
            }
        )
    )


def mix(
    *,
    mixup_alpha: float = 0.2,
    cutmix_alpha: float = 1.0,
    probability: float = 1.0,
    switch_probability: float = 0.5,
    labels: str = "label",
) -> MixupCutmix:
    """Deprecated: the former name of ``mixup_cutmix``. (``Dataset.mix`` mixes data sets.)"""
    warnings.warn("fs.mix was renamed to fs.mixup_cutmix", DeprecationWarning, stacklevel=2)
    return mixup_cutmix(
        mixup_alpha=mixup_alpha,
        cutmix_alpha=cutmix_alpha,
        probability=probability,
        switch_probability=switch_probability,
        labels=labels,
    )


if not TYPE_CHECKING:  # or type checkers would accept any name

    def __getattr__(name):
        if name == "Mix":  # the former name, also in pickles
            warnings.warn("fs.Mix was renamed to fs.MixupCutmix", DeprecationWarning, stacklevel=2)
            return MixupCutmix
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def finish_pictures(
    dtype: _Type = "float32",
    *,
    layout: Literal["planes", "channels_last"] = "planes",
    normalize: Op | None = None,
    flip: float = 0.0,
    mix: MixupCutmix | None = None,
) -> Finish:
    """Finishes images: from uint8 [rows, height, width, 3] to normalized [rows, 3, height, width].

    Args:
        dtype: The element type; default ``"float32"``.
        layout: The layout in memory: ``"planes"`` (NCHW, default) or ``"channels_last"``; the shape is the same.
        normalize: ``fs.normalize(mean, std)``; default: the mean and deviation of ImageNet.
        flip: The probability that an image is mirrored, drawn as by ``fs.horizontal_flip`` at the end of ``map``;
            default 0.
        mix: ``fs.mixup_cutmix()``; default: images are not mixed.

    Raises:
        ConfigError: An argument is not valid.
    """
    described: dict[str, Any] = {"finish": "picture", "dtype": dtype, "layout": layout, "flip": flip}
    if normalize is not None:
        described["normalize"] = _parameters(normalize, "normalize")
    if mix is not None:
        described["mix"] = json.loads(mix.to_json())
    return _checked(described)


def finish_features(
    dtype: _Type = "float32", *, normalize: Op | None = None, spec_augment: Op | None = None
) -> Finish:
    """Finishes features (float32 [rows, frames, features]), such as log-mel spectrograms. Padding is not changed.

    Args:
        dtype: The element type; default ``"float32"``.
        normalize: ``fs.utterance_mvn()`` or ``fs.global_mvn(mean, std)``; default: not normalized.
        spec_augment: ``fs.spec_augment(…)``; default: not masked.

    Raises:
        ConfigError: An argument is not valid.
    """
    described: dict[str, Any] = {"finish": "features", "dtype": dtype}
    if normalize is not None:
        described["normalize"] = json.loads(normalize.to_json())
    if spec_augment is not None:
        described["spec_augment"] = _parameters(spec_augment, "spec_augment")
    return _checked(described)


def _parameters(op: Op, name: str) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(op.to_json())
    if described.pop("op") != name:
        raise ConfigError(f"{name} must be made by fs.{name}(); got {op!r}")
    return described


def _checked(described: dict[str, Any]) -> Finish:
    text = json.dumps(described)
    _feedstock.check_finish(text)
    return Finish(text)
