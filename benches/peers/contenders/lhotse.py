"""Lhotse on speech: cuts, its dynamic bucketing sampler, and a DataLoader that decodes.

Its batches are bounded by seconds of sound, not by a number of clips, and hold clips of like lengths: as many seconds
as others' batches have on average.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contenders import files
from contenders.protocol import SAMPLE_RATE, SPEECH, Batch, Contender, Job, Loader, main


def manifest(job: Job) -> str:
    return f"{job.native}/cuts-{job.storage}.jsonl"


def prepare(job: Job) -> None:
    """Its manifest of cuts; the clips stay where they are."""
    import os

    import lhotse

    os.makedirs(job.native, exist_ok=True)
    with lhotse.CutSet.open_writer(manifest(job), overwrite=True) as writer:
        for place, _ in files.listed(job):
            writer.write(lhotse.Recording.from_file(place).to_cut())


class Features:
    """The data set of PyTorch's DataLoader: a mini-batch of cuts to padded features."""

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


def open_loader(job: Job, state: Any) -> Loader:
    import lhotse
    from lhotse.dataset import DynamicBucketingSampler, SimpleCutSampler
    from torch.utils.data import DataLoader

    cuts = lhotse.CutSet.from_file(manifest(job)).to_eager()
    if job.mode == "check":
        sampler = SimpleCutSampler(cuts, max_cuts=job.batch_size, shuffle=False)
    else:
        mean_s = sum(cut.duration for cut in cuts) / len(cuts)
        sampler = DynamicBucketingSampler(
            cuts,
            max_duration=mean_s * job.batch_size,
            num_buckets=10,
            shuffle=True,
            drop_last=True,
            seed=job.seed,
        )
    loader = DataLoader(
        Features(),
        sampler=sampler,
        batch_size=None,
        num_workers=job.workers,
        persistent_workers=True,
        prefetch_factor=4,
    )

    def batches() -> Iterator[Batch]:
        epoch = 0
        while True:
            yield from loader
            epoch += 1
            sampler.set_epoch(epoch)

    return Loader(batches())


CONTENDER = Contender(
    title="Lhotse",
    open=open_loader,
    layout="native",
    jobs=SPEECH,
    storages=("local",),
    cannot={
        "s3": "clips as single objects need a data set of one's own; its Shar format stores audio anew",
        "resume": "the sampler's state is that of what the DataLoader's workers were given, not of what was delivered",
    },
    prepare=prepare,
    guidance=(
        "map-style data set, batch_size None: Lhotse documentation, PyTorch Datasets",
        "DynamicBucketingSampler with max_duration and 10 buckets, its default: Lhotse documentation, PyTorch "
        "Datasets, Samplers",
        "persistent workers, prefetch_factor 4 instead of 2: our choice, for a steady supply",
        "resampling lazily by the cut: Lhotse documentation, Cuts; mel by torchaudio, so that outputs agree",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
