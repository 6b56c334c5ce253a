"""LitData: chunks in its own format, with unmodified JPEG and MP3 bytes."""

from __future__ import annotations

from typing import Any

from contenders import loading
from contenders.decoding import Decoder, collate
from contenders.protocol import PICTURES, SPEECH, Contender, Job, Loader, main

# With 64 MB, as in its README, there would be only ten files of these images and two of the audio clips.
CHUNK_BYTES = {"pictures": "16MB", "speech": "4MB"}


def sample(entry: tuple[str, int]) -> dict[str, Any]:
    from contenders import files

    return {"data": files.read(entry[0]), "label": entry[1]}


def prepare(job: Job) -> None:
    import litdata

    from contenders import files

    litdata.optimize(
        sample,
        files.listed(job),
        output_dir=job.native,
        chunk_bytes=CHUNK_BYTES["speech" if job.speech else "pictures"],
        num_workers=1,
        start_method="fork",
    )


class Decoding:
    """The ``transform`` of the data set."""

    def __init__(self, job: Job) -> None:
        self._decode = Decoder(job)

    def __call__(self, row: dict[str, Any]) -> tuple[Any, int]:
        return self._decode(row["data"]), row["label"]


def open_loader(job: Job, state: Any) -> Loader:
    import litdata

    options: dict[str, Any] = {}
    if job.remote:
        from litdata.streaming import downloader

        # It has no setting for endpoints without TLS.
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
        options = {"cache_dir": f"{job.scratch}/chunks", "storage_options": {"endpoint_url": job.endpoint}}
    dataset = litdata.StreamingDataset(
        job.native,
        shuffle=job.mode != "check",
        seed=job.seed,
        transform=Decoding(job),
        drop_last=True,
        **options,
    )
    loader = litdata.StreamingDataLoader(dataset, **loading.settings(job, collate(job)))
    return loading.without_end(loader, state)


CONTENDER = Contender(
    title="LitData",
    open=open_loader,
    layout="native",
    jobs=PICTURES + SPEECH,
    prepare=prepare,
    resume=True,
    guidance=(
        "chunks of 16 MB of images and 4 MB of audio clips, because the data are small; StreamingDataLoader: LitData's "
        "README, Speed up model training",
        "calibrated num_workers, persistent; prefetch_factor 2, its default",
        "plain HTTP to the tests' server by its downloader's options, because it has no setting for it",
        "bytes decoded by torchvision.io, as its own JPEG serialiser does: LitData's README",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
