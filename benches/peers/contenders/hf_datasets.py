"""Hugging Face datasets: Arrow files mapped into memory and a DataLoader; from S3, streaming."""

from __future__ import annotations

from typing import Any

from contenders import loading
from contenders.decoding import Decoder, collate
from contenders.protocol import (
    PICTURES,
    RETRY_AFTER_S,
    SHUFFLE_SAMPLES,
    SPEECH,
    Batch,
    Contender,
    Job,
    Loader,
    main,
)

# The most that is requested at once where answers come late, as in the documentation.
LATE_RANGE_BYTES = 128 << 20


class Rows:
    """The function that ``with_transform`` runs on a batch of rows."""

    def __init__(self, job: Job) -> None:
        self._speech, self._decode = job.speech, Decoder(job)

    def _numbers(self, rows: dict[str, list[Any]]) -> list[int]:
        if not self._speech:
            return list(rows["label"])
        from contenders.clips import number_of

        return [number_of(path) for path in rows["path"]]

    def __call__(self, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        encoded = rows["audio" if self._speech else "image"]
        return {"data": [self._decode(one["bytes"]) for one in encoded], "label": self._numbers(rows)}


class Collate:
    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, rows: list[dict[str, Any]]) -> Batch:
        return collate(self._job)([(row["data"], row["label"]) for row in rows])


def table(job: Job) -> Any:
    """Returns the Parquet files as the library's Arrow files, which ``load_dataset`` creates once."""
    from datasets import load_dataset

    from contenders import files

    return load_dataset("parquet", data_files=files.parquet(job), split="train", cache_dir=job.native)


def prepare(job: Job) -> None:
    table(job)


def undecoded(job: Job, dataset: Any) -> Any:
    from datasets import Audio, Image

    if job.speech:
        return dataset.select_columns(["audio", "path"]).cast_column("audio", Audio(decode=False))
    return dataset.select_columns(["image", "label"]).cast_column("image", Image(decode=False))


def open_loader(job: Job, state: Any) -> Loader:
    import torch
    from datasets import load_dataset

    shuffled = job.mode != "check"
    options: dict[str, Any] = {}
    if job.remote:
        where = f"{job.uris['parquet']}/train-*.parquet"
        storage: dict[str, Any] = {"client_kwargs": {"endpoint_url": job.endpoint}}
        ahead: dict[str, Any] = {}
        if job.late:
            from pyarrow import CacheOptions
            from pyarrow.dataset import ParquetFragmentScanOptions

            storage["config_kwargs"] = {"connect_timeout": RETRY_AFTER_S, "read_timeout": RETRY_AFTER_S}
            cache = CacheOptions(prefetch_limit=1, range_size_limit=LATE_RANGE_BYTES)
            ahead = {"fragment_scan_options": ParquetFragmentScanOptions(cache_options=cache)}
        dataset = load_dataset(
            "parquet", data_files=where, split="train", streaming=True, storage_options=storage, **ahead
        )
        dataset = undecoded(job, dataset)
        if shuffled:
            each = max(
                job.batch_size, SHUFFLE_SAMPLES // max(1, job.workers)
            )  # each worker fills its own buffer
            dataset = dataset.shuffle(seed=job.seed, buffer_size=each)
        dataset = dataset.map(Rows(job), batched=True, batch_size=16, remove_columns=dataset.column_names)
    else:
        dataset = undecoded(job, table(job)).with_transform(Rows(job))
        options = {"shuffle": shuffled, "generator": torch.Generator().manual_seed(job.seed)}
    return loading.open_loader(job, state, dataset, Collate(job), **options)


CONTENDER = Contender(
    title="HF datasets",
    open=open_loader,
    layout="parquet",
    jobs=PICTURES + SPEECH,
    prepare=prepare,
    resume=True,
    guidance=(
        "Arrow files mapped into memory, a DataLoader with workers: datasets documentation, Use with PyTorch",
        "decode=False and with_transform: datasets documentation, Load image data and Process",
        "streaming, a shuffle buffer and shards split among workers from S3: datasets documentation, Stream; "
        "fragment_scan_options with read-ahead made no difference without latency, and are set for s3-realistic",
        f"from s3-realistic requests repeated after {RETRY_AFTER_S} s, by s3fs's config_kwargs: our choice, as Amazon "
        "S3's documentation recommends",
        "resume by torchdata's StatefulDataLoader: datasets documentation, Stream, Save a dataset checkpoint",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
