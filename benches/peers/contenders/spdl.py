"""SPDL: a pipeline of threads around its own decoders (spdl.io: FFmpeg's libraries, without the GIL)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from contenders.decoding import collate
from contenders.protocol import (
    EVAL_SIDE,
    MEAN,
    PICTURES,
    SAMPLE_RATE,
    SIDE,
    SPEECH,
    STD,
    Batch,
    Contender,
    Job,
    Loader,
    main,
)

# Bilinear as all contenders; chroma at full resolution and exact rounding, with which FFmpeg's scaler is
# nearest to libjpeg.
SCALER = "bilinear+accurate_rnd+full_chroma_int+full_chroma_inp"

# Requests at a time for each worker of the calibration, where answers come late.
LATE_READS = 4

GUIDANCE = (
    "stages of fetching, decoding and batching with their own concurrency, three batches in the sink: SPDL "
    "documentation, Getting Started, Concurrency and Building High-Performance DataLoaders",
    "aggregated before decoding, one call per batch: the same; one call per sample was slower, "
    "and took less memory",
    "one thread per concurrent stage, decoding as calibrated: SPDL documentation, Optimization Guide, Noisy "
    "Neighbour",
    f"from s3-realistic the fetching stage as calibrated, with {LATE_READS} threads for each worker, and at most one "
    "decoding thread per core: our choice",
)


def crop_of(generator: Any, width: int, height: int) -> tuple[int, int, int, int]:
    """Returns left, top, width and height of torchvision's RandomResizedCrop: area 0.08–1, aspect 3/4–4/3,
    ten tries."""
    for _ in range(10):
        area = width * height * generator.uniform(0.08, 1.0)
        aspect = math.exp(generator.uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            return generator.randint(0, width - across), generator.randint(0, height - down), across, down
    across, down = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (width - across) // 2, (height - down) // 2, across, down


def filters(job: Job, generator: Any, width: int, height: int) -> str:
    """Returns the filter graph of one image: FFmpeg crops, resizes and flips while it converts to RGB."""
    if not job.random:
        short = min(width, height)
        size = width * EVAL_SIDE // short, height * EVAL_SIDE // short
        left, top = (round((side - SIDE) / 2) for side in size)
        return (
            f"scale=w={size[0]}:h={size[1]}:flags={SCALER},format=pix_fmts=rgb24,"
            f"crop=w={SIDE}:h={SIDE}:x={left}:y={top}"
        )
    left, top, across, down = crop_of(generator, width, height)
    flip = "hflip," if generator.random() < 0.5 else ""
    crop = f"crop=w={across}:h={down}:x={left}:y={top}:exact=1"
    return f"{crop},scale=w={SIDE}:h={SIDE}:flags={SCALER},{flip}format=pix_fmts=rgb24"


def frames(job: Job) -> Callable[[bytes], Any]:
    """Returns a function from an image to frames, which are later converted to a batch together."""
    import random

    import spdl.io

    generator = random.Random(job.seed)

    def run(encoded: bytes) -> Any:
        packets = spdl.io.demux_image(encoded)
        described = filters(job, generator, packets.width, packets.height)
        return spdl.io.decode_packets(packets, filter_desc=described)

    return run


def converted(job: Job) -> Callable[[list[tuple[Any, int]]], Batch]:
    """Returns a function that converts a batch's frames to one tensor in one call."""
    import spdl.io
    import torch

    scale = torch.tensor([1 / (255 * value) for value in STD]).view(3, 1, 1)
    shift = torch.tensor([mean / value for mean, value in zip(MEAN, STD, strict=True)]).view(3, 1, 1)

    def run(rows: list[tuple[Any, int]]) -> Batch:
        images = spdl.io.to_torch(spdl.io.convert_frames([row for row, _ in rows]))
        if job.job == "pictures-f32":
            images = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
            images.mul_(scale).sub_(shift)
        return Batch(images, torch.tensor([label for _, label in rows]))

    return run


def clip(job: Job) -> Callable[[bytes], Any]:
    """Returns a function that decodes and resamples with FFmpeg; the mel spectrogram is torchaudio's, so that
    outputs agree."""
    import spdl.io

    from contenders import clips

    features = clips.log_mel()
    described = spdl.io.get_audio_filter_desc(sample_rate=SAMPLE_RATE, num_channels=1, sample_fmt="fltp")

    def run(encoded: bytes) -> Any:
        buffer = spdl.io.load_audio(encoded, filter_desc=described)
        return features(spdl.io.to_torch(buffer)[0])

    return run


def of_files(
    job: Job,
    make: Callable[[Job], Callable[[bytes], Any]],
    gather: Callable[[Job], Callable[[list[tuple[Any, int]]], Batch]] = collate,
) -> Loader:
    """Runs files or objects through a pipeline in which each decoding thread creates its own function;
    ``gather`` creates the one that makes batches of the results."""
    import random
    import threading

    import torch
    from spdl.pipeline import PipelineBuilder

    from contenders import files

    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    listed = files.listed(job)
    local = threading.local()

    def places() -> Iterator[tuple[str, int]]:
        generator = random.Random(job.seed)
        while True:
            order = list(listed)
            if job.mode != "check":
                generator.shuffle(order)
            yield from order

    def fetch(entry: tuple[str, int]) -> tuple[bytes, int]:
        return files.read(entry[0]), entry[1]

    def decode(samples: list[tuple[bytes, int]]) -> list[tuple[Any, int]]:
        if not hasattr(local, "run"):
            local.run = make(job)
        return [(local.run(encoded), number) for encoded, number in samples]

    reading = 8 if job.remote else 1  # reading a file from the page cache takes almost no time
    decoding = job.workers
    if job.late:  # requests wait, which needs threads, and decoding computes, which needs cores
        reading, decoding = LATE_READS * job.workers, min(job.workers, job.cores)
    pipeline = (
        PipelineBuilder()
        .add_source(places())
        .pipe(fetch, concurrency=reading)
        .aggregate(job.batch_size)
        .pipe(decode, concurrency=decoding)
        .pipe(gather(job))
        .add_sink(3)
        .build(num_threads=reading + decoding + 1)
    )
    pipeline.start()
    return Loader(iter(pipeline))


def open_loader(job: Job, state: Any) -> Loader:
    return of_files(job, clip) if job.speech else of_files(job, frames, converted)


CONTENDER = Contender(
    title="SPDL",
    open=open_loader,
    layout="folder",
    jobs=PICTURES + SPEECH,
    cannot={"resume": "SPDL leaves the position to the source"},
    guidance=(
        *GUIDANCE,
        "decoding, cropping, resizing and resampling by spdl.io in one filter graph: SPDL documentation, IO Module, "
        "Filter Graphs; a batch's frames converted in one call: the same, convert_frames",
        "FFmpeg's scaler with exact rounding and chroma at full resolution, slower than its default, so that outputs "
        "are near the reference's: our choice",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
