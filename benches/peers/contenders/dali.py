"""NVIDIA DALI on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contenders.protocol import (
    EVAL_SIDE,
    MEAN,
    SHUFFLE_SAMPLES,
    SIDE,
    STD,
    Batch,
    Contender,
    Job,
    Loader,
    main,
)


def resized(fn: Any, shape: Any) -> Any:
    """Returns height and width with the requested shorter side; the longer one is truncated as in
    torchvision."""
    height, width = shape[0], shape[1]
    short = (height < width) * height + (height >= width) * width
    return fn.stack(height * EVAL_SIDE // short, width * EVAL_SIDE // short)


def middle(room: Any) -> Any:
    """Returns where torchvision begins a centre crop: half of the remaining length, rounded to even."""
    half = room // 2
    return half + (room - 2 * half) * (half - half // 2 * 2)


def open_loader(job: Job, state: Any) -> Loader:
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=job.batch_size,
        num_threads=job.workers,
        device_id=None,
        seed=job.seed,
        prefetch_queue_depth=2,
        enable_checkpointing=job.mode in ("save", "resume"),
    )
    def pipeline() -> Any:
        encoded, label = fn.readers.file(
            file_root=job.uris["folder"],
            random_shuffle=job.mode != "check",
            initial_fill=SHUFFLE_SAMPLES,
            name="files",
        )
        if not job.random:
            image = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
            size = resized(fn, fn.peek_image_shape(encoded))
            wanted = fn.cast(size, dtype=types.FLOAT)
            image = fn.resize(image, size=wanted, interp_type=types.INTERP_LINEAR, antialias=True)
            return fn.slice(
                image, fn.cast(middle(size - SIDE), dtype=types.INT32), [SIDE, SIDE], axes=[0, 1]
            ), label
        image = fn.decoders.image_random_crop(
            encoded,
            device="cpu",
            output_type=types.RGB,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
            num_attempts=10,
        )
        image = fn.resize(image, size=(SIDE, SIDE), interp_type=types.INTERP_LINEAR, antialias=True)
        mirror = fn.random.coin_flip()
        if job.job == "pictures-train":
            return fn.flip(image, horizontal=mirror), label
        mean, std = [255 * value for value in MEAN], [255 * value for value in STD]
        normalised = fn.crop_mirror_normalize(
            image, dtype=types.FLOAT, output_layout="CHW", mean=mean, std=std, mirror=mirror
        )
        return normalised, label

    made = pipeline(checkpoint=state) if state is not None else pipeline()
    made.build()

    def batches() -> Iterator[Batch]:
        while True:
            images, labels = made.run()
            yield Batch(np.asarray(images.as_tensor()), np.asarray(labels.as_tensor())[:, 0])

    return Loader(batches(), made.checkpoint)


CONTENDER = Contender(
    title="DALI, CPU",
    open=open_loader,
    layout="folder",
    tensors="numpy",
    cannot={"speech": "DALI decodes no MP3"},
    resume=True,
    guidance=(
        "calibrated num_threads: DALI documentation, Performance Tuning, Thread Affinity and CPU threads",
        "image_random_crop, which decodes the crop alone: DALI documentation, Image Processing, ROI decoding",
        "files mapped into memory, the reader's default: fn.readers.file, dont_use_mmap",
        "prefetch_queue_depth 2, the default: DALI documentation, Performance Tuning, Prefetching Queue Depth",
        "checkpoints: DALI documentation, Checkpointing",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
