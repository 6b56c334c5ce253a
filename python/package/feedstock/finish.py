"""What becomes of a column on the loader's device, so that only bytes cross the bus.

    loader = pipeline.loader(
        device="cuda", finish={"image": fs.finish_pictures("bfloat16", layout="channels_last", flip=0.5)}
    )

Finishing runs on the device, by kernels that are compiled when they are first used; in host memory where there is none.
Its results are those of the same ops at the chain's end, rounded to the type that is asked for: leave these ops out of
``map``.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from feedstock import _feedstock
from feedstock.errors import ConfigError
from feedstock.ops import Op

__all__ = ["Finish", "Mix", "finish_features", "finish_pictures", "mix"]

_Type = Literal["float32", "float16", "bfloat16"]


class _Described:
    """Something that is its description in JSON: equal and hashable by content, and picklable."""

    __slots__ = ("_json",)

    def __init__(self, text: str) -> None:
        self._json = text

    def to_json(self) -> str:
        """The description."""
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
    """How a column is finished; see ``finish_pictures`` and ``finish_features``."""


class Mix(_Described):
    """How rows are mixed; see ``mix``."""


def mix(
    *,
    mixup_alpha: float = 0.2,
    cutmix_alpha: float = 1.0,
    probability: float = 1.0,
    switch_probability: float = 0.5,
    labels: str = "label",
) -> Mix:
    """Mixup and CutMix: every row is mixed with the row before it, by one weight a batch, as torchvision's ``MixUp``
    and ``CutMix`` do. Weight and box belong to (seed, epoch, position): all ranks draw the same.

    The batch gets two columns: ``<labels>_partner``, the labels of the rows that were mixed in, and ``mix_weight``
    (float32 [rows]), the weight of the rows' own: ``w * loss(y, label) + (1 - w) * loss(y, label_partner)``.

    Args:
        mixup_alpha: Mixup's weights are Beta(alpha, alpha); 0 for none.
        cutmix_alpha: The areas that CutMix keeps are Beta(alpha, alpha); 0 for none.
        probability: The share of batches that are mixed.
        switch_probability: Of these, the share that gets CutMix, where both are on.
        labels: The column of labels.
    """
    return Mix(
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


def finish_pictures(
    dtype: _Type = "float32",
    *,
    layout: Literal["planes", "channels_last"] = "planes",
    normalize: Op | None = None,
    flip: float = 0.0,
    mix: Mix | None = None,
) -> Finish:
    """Pictures (uint8, height × width × 3) as models take them: [rows, 3, height, width].

    Args:
        dtype: The element type.
        layout: ``"planes"`` (NCHW) or ``"channels_last"``, the same shape with the channels of a pixel side by side.
        normalize: ``fs.normalize(mean, std)``; default ImageNet's.
        flip: Mirrors each picture with this probability, drawn as by ``horizontal_flip`` at the chain's end.
        mix: Mixup and CutMix over the batch: ``fs.mix()``.
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
    """Log-mel features (float32) as models take them; padding stays as it is.

    Args:
        dtype: The element type.
        normalize: ``fs.utterance_mvn()`` or ``fs.global_mvn(mean, std)``.
        spec_augment: ``fs.spec_augment(…)``.
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
