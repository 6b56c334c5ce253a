"""The same images through torch's DataLoader with several worker counts, and through DALI if it is installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torchvision import io, transforms
from torchvision.datasets import ImageFolder

import feedstock as fs

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def missing() -> list[str]:
    """Returns what could not be measured, and why."""
    found = importlib.util.find_spec("nvidia.dali") is not None
    return (
        []
        if found
        else ["DALI is not installed here (pip install nvidia-dali-cuda130), so it was not measured"]
    )


def as_folder(data: fs.Dataset, folder: Path) -> Path:
    """Writes the encoded images as files, which both read."""
    if not folder.exists():
        with data.batch(64, tail="pad").loader() as loader:
            for batch in loader:
                for row, (encoded, label) in enumerate(
                    zip(batch["image"], batch["label"].numpy(), strict=True)
                ):
                    if batch.valid[row]:
                        place = folder / f"{label:04}"
                        place.mkdir(parents=True, exist_ok=True)
                        (place / f"{batch.sample_ids[row]}.jpg").write_bytes(encoded)
    return folder


def all_of(data: fs.Dataset, folder: Path, options: Any) -> Iterator[tuple[str, Iterator[Any]]]:
    folder = as_folder(data, folder)
    cpus = len(os.sched_getaffinity(0))
    for workers in sorted({max(1, cpus // 2), cpus, 2 * cpus}):
        yield f"DataLoader, {workers} workers", torch_batches(folder, workers, options)
    if not missing():
        yield "DALI, decoding on the GPU (mixed)", dali_batches(folder, cpus, options)


def torch_batches(folder: Path, workers: int, options: Any) -> Iterator[Any]:
    steps = [transforms.RandomResizedCrop(224, antialias=True), transforms.RandomHorizontalFlip()]
    pictures = ImageFolder(str(folder), transforms.Compose(steps), loader=decode)
    loader = torch.utils.data.DataLoader(
        pictures,
        options.batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=True,
        drop_last=True,
        persistent_workers=True,
    )
    mean, std = (torch.tensor(values, device="cuda").view(1, 3, 1, 1) * 255 for values in (MEAN, STD))
    while True:
        for image, label in loader:
            image = image.cuda(non_blocking=True).to(memory_format=torch.channels_last)
            yield ((image - mean) / std).bfloat16(), label.cuda(non_blocking=True)


def decode(path: str) -> torch.Tensor:
    return io.decode_jpeg(io.read_file(path), io.ImageReadMode.RGB)


def dali_batches(folder: Path, threads: int, options: Any) -> Iterator[Any]:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=options.batch, num_threads=threads, device_id=0)
    def pipeline() -> Any:
        encoded, label = fn.readers.file(file_root=str(folder), random_shuffle=True, name="reader")
        image = fn.decoders.image_random_crop(encoded, device="mixed", output_type=types.RGB)
        image = fn.resize(image, size=[224, 224])
        image = fn.crop_mirror_normalize(
            image,
            dtype=types.FLOAT16,
            output_layout="HWC",
            mean=[value * 255 for value in MEAN],
            std=[value * 255 for value in STD],
            mirror=fn.random.coin_flip(),
        )
        return image, label.gpu()

    made = pipeline()
    made.build()
    iterator = DALIGenericIterator([made], ["image", "label"], reader_name="reader", auto_reset=True)
    while True:
        for (batch,) in iterator:
            yield batch["image"].permute(0, 3, 1, 2).bfloat16(), batch["label"].view(-1).long()
