"""FFCV: one file in its own format, with unmodified JPEG bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contenders.protocol import MEAN, SIDE, STD, Batch, Contender, Job, Loader, main

EVAL_RATIO = 224 / 256


def file_of(job: Job) -> str:
    return f"{job.native}/pictures.beton"


def prepare(job: Job) -> None:
    """Writes the file. FFCV's RGBImageField encodes pixels again; this one stores the given bytes, in the
    same form."""
    import os

    import numpy as np
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import IMAGE_MODES
    from ffcv.writer import DatasetWriter

    from contenders import files, pictures

    class EncodedField(RGBImageField):  # type: ignore[misc]
        def encode(self, destination: Any, encoded: bytes, malloc: Any) -> None:
            width, height = pictures.size_of(encoded)
            destination["mode"] = IMAGE_MODES["jpg"]
            destination["height"], destination["width"] = height, width
            destination["data_ptr"], storage = malloc(len(encoded))
            storage[:] = np.frombuffer(encoded, np.uint8)

    class Samples:
        def __init__(self) -> None:
            self._listed = files.listed(job)

        def __len__(self) -> int:
            return len(self._listed)

        def __getitem__(self, at: int) -> tuple[bytes, int]:
            place, label = self._listed[at]
            return files.read(place), label

    os.makedirs(job.native, exist_ok=True)
    fields = {"image": EncodedField(write_mode="jpg"), "label": IntField()}
    DatasetWriter(file_of(job), fields, num_workers=1).from_indexed_dataset(Samples())


def open_loader(job: Job, state: Any) -> Loader:
    import numpy as np
    from ffcv.fields import RGBImageField
    from ffcv.fields.decoders import CenterCropRGBImageDecoder, IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader as Reader
    from ffcv.loader import OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    size = (SIDE, SIDE)
    if job.random:
        image = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip(), ToTensor()]
    else:
        image = [CenterCropRGBImageDecoder(size, ratio=EVAL_RATIO), ToTensor()]
    if job.job == "pictures-f32":
        mean, std = np.array(MEAN) * 255, np.array(STD) * 255
        image = [
            *image[:2],
            NormalizeImage(mean, std, np.float32),
            ToTensor(),
            ToTorchImage(convert_back_int16=False),
        ]
    reader = Reader(
        file_of(job),
        batch_size=job.batch_size,
        num_workers=job.workers,
        order=OrderOption.SEQUENTIAL if job.mode == "check" else OrderOption.RANDOM,
        os_cache=True,
        batches_ahead=3,
        drop_last=True,
        seed=job.seed,
        custom_fields={"image": RGBImageField},  # the writer's name for it
        pipelines={"image": image, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )

    def batches() -> Iterator[Batch]:
        while True:
            for images, labels in reader:
                yield Batch(images, labels)

    return Loader(batches())


CONTENDER = Contender(
    title="FFCV",
    open=open_loader,
    layout="native",
    storages=("local",),
    cannot={
        "speech": "FFCV has no audio",
        "s3": "FFCV reads local files alone",
        "resume": "FFCV has no state to save",
    },
    prepare=prepare,
    numbers=(0.5, 1),  # it uses at most one thread per core
    guidance=(
        "os_cache=True, as the data fits memory, and OrderOption.RANDOM: FFCV documentation, Tuning Guide",
        "write_mode jpg, the given bytes: FFCV documentation, Working with Image Data",
        "calibrated num_workers, batches_ahead 3, its default: FFCV documentation, Performance Guide",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
