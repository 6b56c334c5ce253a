"""Lhotse on speech: cuts, its dynamic bucketing sampler, and a DataLoader that decodes.

Its batches are bounded by seconds of audio, not by a number of audio clips, and hold audio clips of similar
length. They have as many seconds as others' batches on average. Local audio clips are read as files, those on
S3 from its Shar format: shards with the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contenders import files
from contenders.protocol import SAMPLE_RATE, SHUFFLE_SAMPLES, SPEECH, Batch, Contender, Job, Loader, main

MANIFEST = "manifest.jsonl"
CLIPS = 100  # per shard: about 4 MB


def prepare(job: Job) -> None:
    """Writes its manifest of cuts, which refers to the given files, and its Shar format. Lhotse's SharWriter
    would encode the audio clips again; the lower-level writers used here store the given bytes."""
    import io
    import json
    import os

    import lhotse
    from lhotse.shar import JsonlShardWriter, TarWriter
    from lhotse.shar.utils import to_shar_placeholder

    os.makedirs(job.native, exist_ok=True)
    with (
        lhotse.CutSet.open_writer(f"{job.native}/{MANIFEST}", overwrite=True) as writer,
        JsonlShardWriter(f"{job.native}/cuts.%06d.jsonl", CLIPS) as cuts,
        TarWriter(f"{job.native}/recording.%06d.tar", CLIPS) as recordings,
    ):
        for place, _ in files.listed(job):
            recording = lhotse.Recording.from_file(place)
            writer.write(recording.to_cut())
            stored = to_shar_placeholder(recording)
            cuts.write(stored.to_cut())
            recordings.write(f"{stored.id}.mp3", io.BytesIO(files.read(place)))
            told = json.dumps(stored.to_dict()).encode()
            recordings.write(f"{stored.id}.json", io.BytesIO(told), count=False)


class Features:
    """The data set of PyTorch's DataLoader: from a mini-batch of cuts to padded features."""

    def __init__(self) -> None:
        self._run: Any = None

    def __getitem__(self, cuts: Any) -> Batch:
        import torch

        from contenders import clips

        if self._run is None:
            torch.set_num_threads(1)
            self._run = clips.log_mel()
        rows = []
        for cut in cuts:
            wave = torch.from_numpy(cut.resample(SAMPLE_RATE).load_audio()[0])
            rows.append((self._run(wave), clips.number_of(cut.id)))
        return clips.collate(rows)


def shards(job: Job) -> Any:
    """Returns the cuts of Shar, with the bytes of their audio clips. Each worker reads separate shards."""
    import lhotse

    names = sorted(files.objects(job.native))
    fields = {field: [name for name in names if f"/{field}." in name] for field in ("cuts", "recording")}
    return lhotse.CutSet.from_shar(
        fields, split_for_dataloading=True, shuffle_shards=job.mode != "check", seed=job.seed
    )


def begin(worker: int) -> None:
    """Creates one client for everything that a worker reads from S3."""
    from lhotse.utils import SmartOpen

    SmartOpen.setup({"client": files.client()})


def open_loader(job: Job, state: Any) -> Loader:
    import lhotse
    from lhotse.dataset import DynamicBucketingSampler, DynamicCutSampler, IterableDatasetWrapper
    from lhotse.dataset.sampling.dynamic_bucketing import estimate_duration_buckets
    from torch.utils.data import DataLoader

    known = lhotse.CutSet.from_file(f"{job.native}/{MANIFEST}").to_eager()
    cuts, buckets, held = known, 10, 20_000
    if job.remote:
        # Each worker's buckets hold few cuts with their bytes. With fewer buckets, one of them always has a
        # batch.
        cuts, buckets, held = shards(job), 5, SHUFFLE_SAMPLES
    if job.mode == "check":
        sampler = DynamicCutSampler(cuts, max_cuts=job.batch_size, shuffle=False)
    else:
        mean_s = sum(cut.duration for cut in known) / len(known)
        sampler = DynamicBucketingSampler(
            cuts,
            max_duration=mean_s * job.batch_size,
            duration_bins=estimate_duration_buckets(known, buckets),
            buffer_size=held,
            shuffle=True,
            drop_last=True,
            seed=job.seed,
        )
    what: dict[str, Any]
    if job.remote:
        what = {"dataset": IterableDatasetWrapper(Features(), sampler, auto_increment_epoch=True)}
    else:
        what = {"dataset": Features(), "sampler": sampler}
    loader = DataLoader(
        **what,
        batch_size=None,
        num_workers=job.workers,
        persistent_workers=True,
        worker_init_fn=begin if job.remote else None,
    )

    def batches() -> Iterator[Batch]:
        epoch = 0
        while True:
            yield from loader
            epoch += 1
            if not job.remote:  # for S3, the workers' samplers count
                sampler.set_epoch(epoch)

    return Loader(batches())


CONTENDER = Contender(
    title="Lhotse",
    open=open_loader,
    layout="native",
    reads="folder behind its manifest; from S3 native (Shar)",
    jobs=SPEECH,
    cannot={
        "resume": "the sampler's state is that of what the DataLoader's workers were given, not of what was delivered",
    },
    prepare=prepare,
    guidance=(
        "map-style data set, batch_size None: Lhotse documentation, PyTorch Datasets",
        "DynamicBucketingSampler with max_duration and 10 buckets, its default: Lhotse documentation, PyTorch "
        "Datasets, Samplers",
        "from S3 its Shar format, shards split among workers, IterableDatasetWrapper, duration_bins estimated "
        "beforehand, one client of smart_open: Lhotse documentation, CutSet.from_shar, IterableDatasetWrapper, "
        "DynamicBucketingSampler, SmartOpen; cuts whose sources are URLs took more CPU time",
        f"Shar with the given bytes in shards of {CLIPS} audio clips (4 MB), and from S3 5 buckets that hold "
        f"{SHUFFLE_SAMPLES} cuts of each worker, instead of 20,000, which would be the whole epoch: our choice",
        "persistent workers: our choice, for a steady supply; prefetch_factor 2, its default",
        "resampling lazily by the cut: Lhotse documentation, Cuts; mel by torchaudio, so that outputs agree",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
