"""MosaicML Streaming: shards in its own format (MDS), with unmodified JPEG and MP3 bytes."""

from __future__ import annotations

from typing import Any

from contenders import loading
from contenders.decoding import Decoder, collate
from contenders.protocol import PICTURES, SPEECH, Contender, Job, Loader, main

# With 64 MB, its default, there would be only ten shards of these images and two of the audio clips.
SHARD_BYTES = {"pictures": "16mb", "speech": "4mb"}


def prepare(job: Job) -> None:
    from streaming import MDSWriter

    from contenders import files

    columns, size = {"data": "bytes", "label": "int"}, SHARD_BYTES["speech" if job.speech else "pictures"]
    with MDSWriter(out=job.native, columns=columns, size_limit=size) as writer:
        for place, label in files.listed(job):
            writer.write({"data": files.read(place), "label": label})


def open_loader(job: Job, state: Any) -> Loader:
    from streaming import StreamingDataLoader, StreamingDataset

    decode = Decoder(job)

    class Samples(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: int) -> tuple[Any, int]:
            sample = super().__getitem__(at)
            return decode(sample["data"]), sample["label"]

    place = {"remote": job.native, "local": f"{job.scratch}/mds"} if job.remote else {"local": job.native}
    dataset = Samples(
        **place,
        shuffle=job.mode != "check",
        shuffle_seed=job.seed,
        batch_size=job.batch_size,
        num_canonical_nodes=1,
    )
    loader = StreamingDataLoader(dataset, **loading.settings(job, collate(job)))
    # It counts the samples that it delivers, and supports only tensors, dicts and lists.
    loader._get_batch_size = lambda batch: int(batch.data.shape[0])
    return loading.without_end(loader, state)


CONTENDER = Contender(
    title="MosaicML Streaming",
    open=open_loader,
    layout="native",
    jobs=PICTURES + SPEECH,
    prepare=prepare,
    resume=True,
    guidance=(
        "shards of 16 MB of images and 4 MB of audio clips, because the data are small, without compression: Streaming "
        "documentation, Dataset Format and Conversion",
        "batch_size set on the data set, num_canonical_nodes 1 on one node: Streaming documentation, Shuffling",
        "calibrated workers, persistent: torch.utils.data documentation, Multi-process Data Loading",
        "prefetch_factor 2, its default",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
