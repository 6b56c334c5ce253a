"""Daft: a query over Parquet with a Python function that decodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contenders.decoding import Decoder
from contenders.protocol import PICTURES, RETRY_AFTER_S, SIDE, SPEECH, Batch, Contender, Job, Loader, main

# A single query over the repeated files: a query that began after the end of another one crashed at times
# (0.7.26).
EPOCHS = 64


def open_loader(job: Job, state: Any) -> Loader:
    import os

    import daft
    import numpy as np
    import torch  # noqa: F401  (by the main thread: Daft's threads have small stacks)

    config = None
    if job.remote:
        config = daft.io.IOConfig(
            s3=daft.io.S3Config(
                endpoint_url=job.endpoint,
                region_name=os.environ["AWS_REGION"],
                key_id=os.environ["AWS_ACCESS_KEY_ID"],
                access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
                **({"read_timeout_ms": 1000 * RETRY_AFTER_S} if job.late else {}),
            )
        )
    decode = Decoder(job)
    column, name = ("audio", "path") if job.speech else ("image", "label")
    floats = job.job == "pictures-f32"
    shape = (3, SIDE, SIDE) if floats else (SIDE, SIDE, 3)
    kind = daft.DataType.float32() if floats or job.speech else daft.DataType.uint8()
    made = daft.DataType.tensor(kind) if job.speech else daft.DataType.tensor(kind, shape)

    @daft.udf(return_dtype=made, batch_size=job.batch_size)  # type: ignore[untyped-decorator]
    def decoded(encoded: Any) -> Any:
        rows = [decode(one).numpy() for one in encoded.to_pylist()]
        return rows if job.speech else np.stack(rows)

    places = [f"{job.uris['parquet']}/train-*.parquet"] * (job.epochs if job.mode == "check" else EPOCHS)
    frame = daft.read_parquet(places, io_config=config)
    frame = frame.select(daft.col(column).get("bytes").alias("encoded"), daft.col(name))
    frame = frame.select(decoded(daft.col("encoded")).alias("data"), daft.col(name))

    def parts() -> Iterator[tuple[Any, list[Any]]]:
        for part in frame.to_arrow_iter(results_buffer_size=2):
            labels = part.column(name).to_pylist()
            data = part.column("data")
            if job.speech:
                yield [row if isinstance(row, np.ndarray) else row.as_py() for row in data], labels
            else:
                yield _rows(data, shape), labels

    return Loader(speech(parts(), job) if job.speech else pictures(parts(), job))


def _rows(data: Any, shape: tuple[int, ...]) -> Any:
    """Returns a column of fixed-shape tensors as one array, without a copy if it is one chunk."""
    storage = data.storage if hasattr(data, "storage") else data
    values = storage.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(data), *shape)


def pictures(parts: Iterator[tuple[Any, list[Any]]], job: Job) -> Iterator[Batch]:
    """Cuts morsels into batches."""
    import numpy as np

    left: list[Any] = []
    labels: list[Any] = []
    held = 0
    for data, names in parts:
        left.append(data)
        labels += names
        held += len(data)
        while held >= job.batch_size:
            together = left[0] if len(left) == 1 else np.concatenate(left)
            yield Batch(together[: job.batch_size], labels[: job.batch_size])
            left, labels = [together[job.batch_size :]], labels[job.batch_size :]
            held = len(left[0])


def speech(parts: Iterator[tuple[Any, list[Any]]], job: Job) -> Iterator[Batch]:
    import numpy as np

    from contenders import clips

    rows: list[tuple[Any, int]] = []
    for data, names in parts:
        for row, name in zip(data, names, strict=True):
            if isinstance(row, dict):
                row = np.asarray(row["data"], np.float32).reshape(row["shape"])
            rows.append((np.array(row, np.float32), clips.number_of(name)))
            if len(rows) == job.batch_size:
                batch = clips.collate(rows)
                yield Batch(batch.data.numpy(), batch.ids, batch.lengths)
                rows = []


CONTENDER = Contender(
    title="Daft",
    open=open_loader,
    layout="parquet",
    tensors="numpy",
    jobs=PICTURES + SPEECH,
    cannot={"resume": "Daft has no state to save"},
    numbers=(1,),
    guidance=(
        "a function of batches, results streamed: Daft documentation, User-defined functions, Optimising memory usage",
        "threads are chosen by its native runner, its default",
        f"from s3-realistic requests repeated after {RETRY_AFTER_S} s, by its S3Config: our choice, as Amazon S3's "
        "documentation recommends",
        "rows are not shuffled: our choice in its favour, because it has only a global shuffle",
        "one query over the files 64 times, because one per epoch would start again, and 2 results ahead: our choice",
        "decoding by torchvision.io: our choice, as its own decode, crop (by a column of boxes) and resize are "
        "slower, cannot flip, and resize all rows to one size",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
