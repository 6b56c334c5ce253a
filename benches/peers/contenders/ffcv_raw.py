"""FFCV with pixels that were decoded when its file was written: a run decodes nothing."""

from __future__ import annotations

from typing import Any

from contenders.ffcv import file_of, open_loader
from contenders.protocol import Contender, Job, main


class Pixels:
    """Samples for its writer: images decoded by Pillow, because the writer requires pixels for everything but
    JPEG."""

    def __init__(self, job: Job) -> None:
        from contenders import files

        self._listed = files.listed(job)

    def __len__(self) -> int:
        return len(self._listed)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        import io

        import numpy as np
        from PIL import Image

        from contenders import files

        place, label = self._listed[at]
        return np.asarray(Image.open(io.BytesIO(files.read(place))).convert("RGB")), label


def prepare(job: Job) -> None:
    import os

    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    os.makedirs(job.native, exist_ok=True)
    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    DatasetWriter(file_of(job), fields, num_workers=job.cores).from_indexed_dataset(Pixels(job))


CONTENDER = Contender(
    title="FFCV, pixels decoded ahead",
    open=open_loader,
    layout="native",
    reads="native, decoded pixels",
    storages=("local",),
    cannot={
        "speech": "FFCV has no audio",
        "s3": "FFCV reads local files alone",
        "resume": "FFCV has no state to save",
    },
    prepare=prepare,
    numbers=(0.5, 1),  # it uses at most one thread per core
    environment="ffcv",
    guidance=(
        "write_mode raw, which usually performs best where memory holds all of the data: FFCV documentation, Working "
        "with Image Data in FFCV",
        "everything else as FFCV above",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
