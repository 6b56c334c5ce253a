"""WebDataset: tars, read in order with a shuffle buffer."""

from __future__ import annotations

from typing import Any

from contenders import loading
from contenders.decoding import Decoder
from contenders.protocol import PICTURES, RETRY_AFTER_S, SHUFFLE_SAMPLES, SPEECH, Contender, Job, Loader, main

# Options of curl where answers come late: it repeats a request that brings nothing. By default it waits for it
# without a limit.
LATE_OPTIONS = f"--retry 5 --speed-limit 1 --speed-time {RETRY_AFTER_S} "


def signed(place: str, options: str) -> str:
    """Returns a URL that curl can read, in the form of WebDataset's ``pipe:``."""
    from contenders import files

    bucket, _, key = place.removeprefix("s3://").partition("/")
    url = files.client().generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=3600
    )
    return f"pipe:curl -s -f {options}'{url}'"


class Rows:
    """Decodes one sample of a tar."""

    def __init__(self, job: Job) -> None:
        self._speech, self._decode = job.speech, Decoder(job)

    def __call__(self, sample: dict[str, Any]) -> tuple[Any, int]:
        if self._speech:
            from contenders.clips import number_of

            return self._decode(sample["mp3"]), number_of(sample["__key__"])
        return self._decode(sample["jpg"]), int(sample["cls"])


def open_loader(job: Job, state: Any) -> Loader:
    import webdataset as wds

    from contenders import files
    from contenders.decoding import collate

    places = files.tars(job)
    options = LATE_OPTIONS if job.late else ""
    urls = [signed(place, options) for place in places] if job.remote else places
    shuffled = job.mode != "check"
    dataset = wds.WebDataset(
        urls,
        shardshuffle=len(urls) if shuffled else False,
        workersplitter=wds.split_by_worker,
        seed=job.seed,
        empty_check=False,  # a worker beyond the number of shards has none
    )
    if shuffled:
        each = max(job.batch_size, SHUFFLE_SAMPLES // max(1, job.workers))
        dataset = dataset.shuffle(each, initial=min(each, job.batch_size))
    dataset = dataset.map(Rows(job)).batched(job.batch_size, collation_fn=collate(job), partial=False)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=job.workers, persistent_workers=True)
    return loading.without_end(loader, state)


CONTENDER = Contender(
    title="WebDataset",
    open=open_loader,
    layout="webdataset",
    jobs=PICTURES + SPEECH,
    cannot={"resume": "WebDataset has no state to save; its FAQ advises resampling instead"},
    guidance=(
        "batches made in the workers, WebLoader with batch_size None: WebDataset documentation, Using WebDataset",
        f"shards split among workers; shards shuffled and a buffer of {SHUFFLE_SAMPLES} samples over all workers, "
        "which delivers from a batch of samples on (initial): WebDataset documentation, Sharding and Parallel I/O; "
        "shuffle",
        "persistent workers, prefetch_factor 2, its default: torch.utils.data documentation",
        "S3 by pipe: and curl on signed URLs: WebDataset documentation, WebDataset URLs",
        f"from s3-realistic curl repeats a request that brings nothing for {RETRY_AFTER_S} s: our choice, as Amazon "
        "S3's documentation recommends",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
