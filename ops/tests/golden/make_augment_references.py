"""Computes the golden references of `aug_mix` and `timm_rand_augment` with torchvision, timm and Pillow.

    python -m venv /tmp/golden
    /tmp/golden/bin/pip install pillow==13.0.0 numpy torch==2.11.0 torchvision==0.26.0 timm==1.0.31
    /tmp/golden/bin/python ops/tests/golden/make_augment_references.py

draws what the ops draw, with the generator of `python/tests/draws.py`, and has torchvision and timm apply it to `scene.png`.
Writes the results one below the other to `drawn.png`, and the chains with the samples' ids to `drawn.json`.
"""

import json
import random
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from PIL import Image
from timm.data import auto_augment as timm
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F
from torchvision.transforms.autoaugment import _apply_op

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "python" / "tests"))
from draws import Draws  # noqa: E402

SEED, EPOCH, OP = 7, 1, 2
HEIGHT, WIDTH = 32, 40


class DrawnAugMix(v2.AugMix):
    """torchvision's op with our draws and its operations on PIL images."""

    def run(self, picture, sample):
        self.draws = Draws(SEED, EPOCH, sample, OP)
        self.depth = self.magnitude = None
        with mock.patch.object(torch, "randint", self.randint), mock.patch.object(torch, "rand", self.rand):
            return self(picture)

    def _sample_dirichlet(self, params):
        weights = self.draws.dirichlet(float(params[0, 0]), params.shape[1])
        return torch.tensor([weights], dtype=torch.float64).float()

    def randint(self, *args, low=None, high=None, size=()):
        drawn = low + self.draws.below(high - low) if low is not None else self.draws.below(args[0])
        return torch.tensor(drawn)

    def rand(self, size):
        """Magnitudes become negative where torchvision draws at most 0.5."""
        return torch.tensor(0.25 if self.draws.below(2) == 1 else 0.75)

    def _get_random_item(self, space):
        keys = list(space)
        key = keys[self.draws.below(len(keys))]
        return key, space[key]

    def _apply_image_or_video_transform(self, image, transform_id, magnitude, interpolation, fill):
        picture = F.to_pil_image(image[0])
        if transform_id == "Solarize":
            magnitude *= 255.0
        fill = fill.get(torch.Tensor, fill.get("others")) if isinstance(fill, dict) else fill
        result = _apply_op(picture, transform_id, magnitude, interpolation, fill)
        return torch.from_numpy(np.array(result)).permute(2, 0, 1)[None]


def aug_mix_cases(picture):
    for options, keywords in (
        ("", {}),
        (":10:interpolation=nearest", {"severity": 10, "interpolation": InterpolationMode.NEAREST}),
        (":7:mixture_width=1:chain_depth=4:all_ops=false:alpha=0.3",
         {"severity": 7, "mixture_width": 1, "chain_depth": 4, "all_ops": False, "alpha": 0.3}),
        (":5:mixture_width=5:alpha=3:fill=200", {"severity": 5, "mixture_width": 5, "alpha": 3.0, "fill": 200}),
    ):
        op = DrawnAugMix(**keywords)
        for sample in range(6):
            yield f"aug_mix{options}", sample, op.run(picture, sample)


SIGNED = {"Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"}
FILTERS = {"nearest": Image.Resampling.NEAREST, "bicubic": Image.Resampling.BICUBIC}


def timm_rand_augment(picture, sample, config, interpolation):
    """Applies the operations of timm's transform to our draws."""
    draws = Draws(SEED, EPOCH, sample, OP)
    transform = timm.rand_augment_transform(config, {"img_mean": (124, 116, 104)})
    for _ in range(transform.num_layers):
        op = transform.ops[draws.below(len(transform.ops))]
        if not draws.chance(op.prob):
            continue
        std = op.magnitude_std
        magnitude = op.magnitude + (std * draws.normal() if std > 0 else 0.0)
        magnitude = max(0.0, min(magnitude, 10.0))
        warps = op.name in SIGNED
        negative = (warps or op.name[:5] in ("Color", "Contr", "Brigh", "Sharp") and "Incr" in op.name) and draws.below(2)
        resample = interpolation
        if resample is None:
            cubic = warps and draws.below(2) == 1
            resample = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
        with mock.patch.object(random, "random", lambda: 0.75 if negative else 0.25):
            args = op.level_fn(magnitude, op.hparams) if op.level_fn else ()
        picture = op.aug_fn(picture, *args, fillcolor=op.kwargs["fillcolor"], resample=resample)
    return picture


def timm_cases(picture):
    for options, config, interpolation in (
        ("", "rand-m9-mstd0.5-inc1", None),
        (":4:num_layers=4:probability=1:interpolation=bicubic", "rand-m4-n4-p1.0-mstd0.5-inc1", "bicubic"),
        (":6:num_layers=3:probability=1:magnitude_std=0:increasing=false:interpolation=nearest", "rand-m6-n3-p1.0",
         "nearest"),
    ):
        for sample in range(16):
            result = timm_rand_augment(picture, sample, config, FILTERS.get(interpolation))
            yield f"timm_rand_augment{options}", sample, result


def warp_cases(picture):
    """Bicubic warps of other ops, whose draws are fixed."""
    mode = InterpolationMode.BICUBIC
    yield "rotate:17.3..17.3:interpolation=bicubic:fill=9", 0, v2.functional.rotate(picture, 17.3, mode, fill=9)
    moved = v2.functional.affine(picture, 25, [0, 0], 0.8, [12, -5], mode, 7)
    yield "affine:25..25:scale=0.8..0.8:shear=12/12/-5/-5:interpolation=bicubic:fill=7", 0, moved


def main():
    picture = F.center_crop(Image.open(HERE / "scene.png"), [HEIGHT, WIDTH])
    outcomes, cases = [], []
    for make in (aug_mix_cases, timm_cases, warp_cases):
        for ops, sample, result in make(picture):
            outcomes.append(np.asarray(result))
            cases.append({"chain": f"decode_image,center_crop:{HEIGHT}x{WIDTH},{ops}", "sample": sample})
    Image.fromarray(np.concatenate(outcomes)).save(HERE / "drawn.png", optimize=True)
    about = {"seed": SEED, "epoch": EPOCH, "size": [HEIGHT, WIDTH], "cases": cases}
    (HERE / "drawn.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
