"""Grain: a MapDataset over files or objects, worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contenders.decoding import Decoder
from contenders.protocol import PICTURES, SPEECH, Batch, Contender, Job, Loader, main

# Threads of each worker where answers come late: Grain's default.
LATE_THREADS = 16


class Files:
    """A random-access source."""

    def __init__(self, job: Job) -> None:
        from contenders import files

        self._listed = files.listed(job)

    def __len__(self) -> int:
        return len(self._listed)

    def __getitem__(self, at: int) -> tuple[bytes, int]:
        from contenders import files

        place, label = self._listed[at]
        return files.read(place), label


class Decode:
    def __init__(self, job: Job) -> None:
        self._decode = Decoder(job)  # seeds the crops of its process

    def __call__(self, sample: tuple[bytes, int]) -> tuple[Any, Any]:
        import numpy as np

        return self._decode(sample[0]).numpy(), np.int64(sample[1])


def padded(rows: Any) -> tuple[Any, Any, Any]:
    import numpy as np

    features = [row for row, _ in rows]
    out = np.zeros((len(features), max(map(len, features)), features[0].shape[1]), np.float32)
    for target, row in zip(out, features, strict=True):
        target[: len(row)] = row
    return out, np.array([number for _, number in rows]), np.array([len(row) for row in features])


def open_loader(job: Job, state: Any) -> Loader:
    import grain

    dataset = grain.MapDataset.source(Files(job)).seed(job.seed)
    if job.mode != "check":
        dataset = dataset.shuffle()
    threads = LATE_THREADS if job.late else 4
    dataset = (
        dataset.repeat()
        .map(Decode(job))
        .to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=64))
    )
    if job.speech:
        dataset = dataset.batch(job.batch_size, drop_remainder=True, batch_fn=padded)
    else:
        dataset = dataset.batch(job.batch_size, drop_remainder=True)
    dataset = dataset.mp_prefetch(
        grain.MultiprocessingOptions(num_workers=job.workers, per_worker_buffer_size=2)
    )
    iterator = iter(dataset)
    if state is not None:
        iterator.set_state(state)

    def batches() -> Iterator[Batch]:
        for parts in iterator:
            yield Batch(*parts)

    return Loader(batches(), iterator.get_state)


CONTENDER = Contender(
    title="Grain",
    open=open_loader,
    layout="folder",
    tensors="numpy",
    jobs=PICTURES + SPEECH,
    resume=True,
    guidance=(
        "MapDataset, batch before mp_prefetch: Grain documentation, Dataset basics, Multiprocess prefetch",
        "4 threads read and decode in each worker with a buffer of 64 elements instead of 16 and 500, which "
        "are meant for elements of 1–10 KiB; from s3-realistic 16 threads, its default: grain.ReadOptions",
        "calibrated workers, 2 batches ahead in each: grain.MultiprocessingOptions",
        "decoding by torchvision.io: our choice, because Grain has no decoder",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
