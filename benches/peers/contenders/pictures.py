"""The processing of one image in PyTorch, for the contenders that decode with it: with Pillow, or with
torchvision.io.

Pillow's draft mode (decoding at a half or a quarter) would help only crops of at least twice 224 px; images
of 400×350 px have none.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

from contenders.protocol import EVAL_SIDE, MEAN, SIDE, STD, Batch, Job


def chain(job: Job) -> Any:
    """Returns torchvision's transforms of the job (v2, as its documentation recommends for speed), applied
    after decoding."""
    import torch
    from torchvision.transforms import v2

    if not job.random:
        return v2.Compose([v2.Resize(EVAL_SIDE), v2.CenterCrop(SIDE)])
    return (
        v2.Compose([v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip()])
        if job.job == "pictures-train"
        else (
            v2.Compose(
                [
                    v2.RandomResizedCrop(SIDE),
                    v2.RandomHorizontalFlip(),
                    v2.ToImage(),
                    v2.ToDtype(torch.float32, scale=True),
                    v2.Normalize(MEAN, STD),
                ]
            )
        )
    )


def with_torchvision(job: Job) -> Callable[[bytes], Any]:
    """Decodes bytes to a tensor with torchvision.io's libjpeg-turbo and its native u8 resize."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    transform = chain(job)
    floats = job.job == "pictures-f32"

    def run(encoded: bytes) -> Any:
        image = transform(decode_jpeg(torch.frombuffer(encoded, dtype=torch.uint8), mode=ImageReadMode.RGB))
        return image if floats else image.permute(1, 2, 0).contiguous()

    return run


def with_pillow(job: Job) -> Callable[[bytes], Any]:
    """Decodes bytes to a tensor with Pillow."""
    import numpy as np
    import torch
    from PIL import Image

    transform = chain(job)
    floats = job.job == "pictures-f32"

    def run(encoded: bytes) -> Any:
        image = transform(Image.open(io.BytesIO(encoded)).convert("RGB"))
        return image if floats else torch.from_numpy(np.array(image))

    return run


def collate(rows: list[tuple[Any, int]]) -> Batch:
    """Collates rows and labels into a batch, in a DataLoader's worker: directly in the shared memory in which
    it is sent."""
    import torch
    from torch.utils.data import default_collate, get_worker_info

    images = [image for image, _ in rows]
    labels = torch.tensor([label for _, label in rows])
    if get_worker_info() is None:
        return Batch(torch.stack(images), labels)
    return Batch(default_collate(images), labels)


def size_of(encoded: bytes) -> tuple[int, int]:
    """Returns width and height from the JPEG's frame header, for decoders that need the crop beforehand."""
    at = 2
    while encoded[at] == 0xFF:
        marker, length = encoded[at + 1], int.from_bytes(encoded[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(encoded[at + 7 : at + 9], "big"), int.from_bytes(
                encoded[at + 5 : at + 7], "big"
            )
        at += 2 + length
    raise ValueError("a JPEG without a frame header")
