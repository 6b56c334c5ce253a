"""feedstock: images from shards of `feedstock shard`, audio clips from the given files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from contenders.protocol import (
    EVAL_SIDE,
    FLOOR,
    HOP,
    MELS,
    N_FFT,
    PICTURES,
    SAMPLE_RATE,
    SHUFFLE_SAMPLES,
    SIDE,
    SPEECH,
    Batch,
    Contender,
    Job,
    Loader,
    main,
)

# The window's blocks (29 MiB of images, 11 MiB of audio clips) and blocks read ahead, but less than a further
# tenth of an epoch. Blocks that stay in memory from epoch to epoch would not be read while a rate is
# measured. A batch of unmodified images needs 36 MiB.
BUDGET_BYTES = {"pictures": 38 << 20, "speech": 16 << 20}

# Where answers come late, blocks are read further ahead, but the last measured batch still has blocks of its
# epoch left to read ahead.
LATE_BUDGET_BYTES = {"pictures": 96 << 20, "speech": 32 << 20}

# MCUs between restart markers of its shards: 64×16 px of a 4:2:0 image.
RESTART_INTERVAL = 4


def prepare(job: Job) -> None:
    """Writes the same JPEGs with restart markers, without loss. Audio clips are read from the given files."""
    import subprocess
    import sys

    if not job.speech:
        options = ["--restart-interval", str(RESTART_INTERVAL), "--columns", "image,label", "--quiet"]
        command = [sys.executable, "-m", "feedstock", "shard", job.uris["parquet"], job.native, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def open_loader(
    job: Job,
    state: Any,
    output: Literal["numpy", "torch"] = "numpy",
    *,
    defaults: bool = False,
    as_they_are: bool = False,
) -> Loader:
    import feedstock as fs

    chains = {
        "pictures-train": (fs.decode_image(), fs.random_resized_crop(SIDE), fs.horizontal_flip()),
        "pictures-eval": (fs.decode_image(), fs.resize(EVAL_SIDE), fs.center_crop(SIDE)),
        "pictures-f32": (
            fs.decode_image(),
            fs.random_resized_crop(SIDE),
            fs.horizontal_flip(),
            fs.normalize(),
            fs.to_chw(),
        ),
    }
    if job.speech:
        dataset = fs.Dataset(job.uris["parquet"], split="train", durations="never", columns=["audio", "path"])
        features = fs.log_mel(
            MELS,
            n_fft=N_FFT,
            hop_length=HOP,
            mel_scale="htk",
            norm="none",
            log="ln",
            floor=FLOOR,
            drop_last_frame=False,
        )
        pipeline = dataset.map("audio", fs.decode_audio(), fs.resample(SAMPLE_RATE), features)
    else:
        uri = job.uris["parquet"] if as_they_are else job.native
        dataset = fs.Dataset(uri, columns=["image", "label"])
        pipeline = dataset.map("image", *chains[job.job])
    if defaults:
        pipeline = pipeline.shuffle(seed=job.seed).batch(job.batch_size)
    else:
        budgets = LATE_BUDGET_BYTES if job.late else BUDGET_BYTES
        budget_bytes = budgets["speech" if job.speech else "pictures"]
        if job.mode != "check":
            pipeline = pipeline.shuffle(seed=job.seed, window=SHUFFLE_SAMPLES)
        pipeline = pipeline.batch(job.batch_size).options(threads=job.workers, budget_bytes=budget_bytes)
    loader = pipeline.loader(output=output)
    if state is not None:
        loader.load_state_dict(state)
    batches = speech(loader) if job.speech else pictures(loader)
    return Loader(batches, loader.state_dict, lambda: int(loader.stats()["fetched_bytes"]))


def pictures(loader: Any) -> Iterator[Batch]:
    while True:
        for batch in loader:
            yield Batch(batch["image"], batch["label"])


def speech(loader: Any) -> Iterator[Batch]:
    from contenders.clips import number_of

    while True:
        for batch in loader:
            numbers = [number_of(path) for path in batch["path"]]
            yield Batch(batch["audio"], numbers, batch["audio_length"])


CONTENDER = Contender(
    title="feedstock",
    open=open_loader,
    layout="native",
    reads="native pictures, parquet clips",
    tensors="numpy",
    jobs=PICTURES + SPEECH,
    prepare=prepare,
    numbers=(1,),
    resume=True,
    guidance=(
        "one thread per core, its default: Pipeline.options; batches as views in numpy: python/README.md",
        f"images from Parquet of `feedstock shard --restart-interval {RESTART_INTERVAL}`, the same JPEGs with markers: "
        "README, The command; audio clips from the given Parquet files",
        "the catalog of the data's files is made by the first run and stored in its cache folder, its default: README",
        f"samples shuffled in windows of {SHUFFLE_SAMPLES}, as in peers' buffers, instead of 512 MiB; up to 64 lanes, "
        "its default: Pipeline.shuffle",
        f"a budget of {BUDGET_BYTES['pictures'] >> 20} MiB for images, {BUDGET_BYTES['speech'] >> 20} MiB for audio, "
        "instead of 1 GiB, so that none stays in memory from epoch to epoch; from s3-realistic "
        f"{LATE_BUDGET_BYTES['pictures'] >> 20} MiB and {LATE_BUDGET_BYTES['speech'] >> 20} MiB, to read further "
        "ahead: our choice",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
