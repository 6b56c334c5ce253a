"""Ray Data on one node, from Parquet to batches of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contenders.decoding import Decoder
from contenders.protocol import PICTURES, SPEECH, Batch, Contender, Job, Loader, main

# A single execution over the repeated files: an execution per epoch would start its actors again.
EPOCHS = 16

# Finished data that may wait for the consumer: 27 batches of images. The default is a share of all memory,
# which holds more than an epoch of this data. A float takes four bytes.
STORE_BYTES = 256 << 20
STORE_BYTES_F32 = 4 * STORE_BYTES

# Size of the blocks that actors deliver: about one batch. Ray's default of 128 MiB would hold 900 images
# back.
BLOCK_BYTES = 16 << 20


# What a task that reads reserves of a CPU where answers come late, so that several wait at once.
LATE_READ_CPUS = 0.25


class Decode:
    """The callable class that ``map_batches`` runs in a pool of actors."""

    def __init__(self, job: Job) -> None:
        self._speech, self._decode = job.speech, Decoder(job)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        if not self._speech:
            rows = [self._decode(picture["bytes"]).numpy() for picture in batch["image"]]
            return {"image": np.stack(rows), "label": batch["label"]}
        from contenders.clips import number_of

        rows = [self._decode(clip["bytes"]).numpy() for clip in batch["audio"]]
        out = np.empty(len(rows), object)  # rows of different lengths; padded when a batch is made of them
        out[:] = rows
        return {"features": out, "number": np.array([number_of(path) for path in batch["path"]])}


def padded(batch: dict[str, Any]) -> Batch:
    """The ``collate_fn`` of speech."""
    import numpy as np

    from contenders import clips

    rows = [np.asarray(row, np.float32) for row in batch["features"]]
    return clips.collate(list(zip(rows, batch["number"], strict=True)))


def open_loader(job: Job, state: Any) -> Loader:
    import ray

    from contenders import files

    # Each actor reserves a CPU; one more allows files to be read at the same time.
    ray.init(num_cpus=job.workers + 1, include_dashboard=False, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = BLOCK_BYTES
    store_bytes = STORE_BYTES_F32 if job.job == "pictures-f32" else STORE_BYTES
    context.execution_options.resource_limits = ray.data.ExecutionResources(object_store_memory=store_bytes)
    filesystem = None
    places = files.parquet(job) if not job.remote else []
    if job.remote:
        import pyarrow.fs

        scheme, _, address = job.endpoint.partition("://")
        filesystem = pyarrow.fs.S3FileSystem(endpoint_override=address, scheme=scheme)
        infos = filesystem.get_file_info(pyarrow.fs.FileSelector(job.uris["parquet"].removeprefix("s3://")))
        places = sorted(info.path for info in infos if "/train-" in info.path)
    shuffled = job.mode != "check"
    dataset = ray.data.read_parquet(
        places * (EPOCHS if shuffled else job.epochs),
        filesystem=filesystem,
        columns=["audio", "path"] if job.speech else ["image", "label"],
        shuffle="files" if shuffled else None,
        num_cpus=LATE_READ_CPUS if job.late else None,
    ).map_batches(
        Decode,
        fn_constructor_args=(job,),
        batch_size=job.batch_size,
        compute=ray.data.ActorPoolStrategy(size=job.workers),
        num_cpus=1,
    )
    options = {"batch_size": job.batch_size, "drop_last": True, "prefetch_batches": 2}

    def batches() -> Iterator[Batch]:
        while True:
            if job.speech:
                yield from dataset.iter_torch_batches(collate_fn=padded, **options)
            else:
                for batch in dataset.iter_torch_batches(**options):
                    yield Batch(batch["image"], batch["label"])

    return Loader(batches())


CONTENDER = Contender(
    title="Ray Data",
    open=open_loader,
    layout="parquet",
    jobs=PICTURES + SPEECH,
    cannot={"resume": "Ray Data has no state to save"},
    guidance=(
        "a callable class in a fixed pool of actors, of calibrated size: Ray documentation, Transforming Data, "
        "Stateful Transforms; ray.data.ActorPoolStrategy",
        "columns selected when reading, blocks of 16 MiB: Ray documentation, Advanced: Performance Tips and Tuning",
        "256 MiB of the object store (1 GiB for f32), so that it holds no whole epoch: Ray documentation, Advanced: "
        "Performance Tips and Tuning, Configuring execution",
        "from s3-realistic a quarter of a CPU for each read task: Ray documentation, Advanced: Performance Tips and "
        "Tuning, Tuning read resources",
        "one execution over the files 16 times, because one per epoch would start its actors again: our choice",
        "iter_torch_batches, 2 batches ahead, padding in its collate_fn: Ray documentation, Data Loading for Training",
        "file order shuffled, rows not: Ray documentation, Shuffling Data (the cheapest way listed)",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
