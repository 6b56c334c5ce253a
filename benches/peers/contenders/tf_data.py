"""tf.data: files and its own JPEG operations; speech through a Python function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contenders.protocol import (
    EVAL_SIDE,
    FLOOR,
    HOP,
    MEAN,
    MELS,
    N_FFT,
    PICTURES,
    SAMPLE_RATE,
    SIDE,
    SPEECH,
    STD,
    Batch,
    Contender,
    Job,
    Loader,
    main,
)


def middle(room: Any) -> Any:
    """Returns where torchvision begins a centre crop: half of the remaining length, rounded to even."""
    return room // 2 + (room % 2) * (room // 2 % 2)


def picture_ops(job: Job) -> Any:
    import tensorflow as tf

    # Stateless operations: an iterator over stateful ones has no checkpoint.
    def train(encoded: Any, seed: Any) -> Any:
        shape = tf.image.extract_jpeg_shape(encoded)
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.zeros((1, 0, 4)),
            seed,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3, dct_method="INTEGER_ACCURATE")
        image = tf.image.resize(image, (SIDE, SIDE), antialias=True)
        image = tf.image.stateless_random_flip_left_right(image, seed)
        if job.job == "pictures-train":
            return tf.cast(tf.round(image), tf.uint8)
        image = (image / 255.0 - tf.constant(MEAN)) / tf.constant(STD)
        return tf.transpose(image, (2, 0, 1))

    def evaluate(encoded: Any, _: Any) -> Any:
        image = tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE")
        height, width = tf.shape(image)[0], tf.shape(image)[1]
        short = tf.minimum(height, width)
        size = (height * EVAL_SIDE // short, width * EVAL_SIDE // short)
        image = tf.image.resize(image, size, antialias=True)
        top, left = middle(size[0] - SIDE), middle(size[1] - SIDE)
        image = tf.image.crop_to_bounding_box(image, top, left, SIDE, SIDE)
        return tf.cast(tf.round(image), tf.uint8)

    return train if job.random else evaluate


def speech_ops() -> Any:
    """Returns a function that decodes and resamples in Python; TensorFlow computes the features."""
    import io

    import soundfile
    import soxr
    import tensorflow as tf

    bins = N_FFT // 2 + 1
    matrix = tf.signal.linear_to_mel_weight_matrix(MELS, bins, SAMPLE_RATE, 0.0, SAMPLE_RATE / 2)

    def wave(encoded: bytes) -> Any:
        samples, rate = soundfile.read(io.BytesIO(encoded), dtype="float32")
        return soxr.resample(samples, rate, SAMPLE_RATE)

    def features(encoded: Any, _: Any) -> Any:
        samples = tf.ensure_shape(tf.numpy_function(wave, [encoded], tf.float32), (None,))
        samples = tf.pad(samples, [[N_FFT // 2, N_FFT // 2]], "REFLECT")
        spectrum = tf.signal.stft(samples, N_FFT, HOP, fft_length=N_FFT)
        mel = tf.square(tf.abs(spectrum)) @ matrix
        return tf.math.log(tf.maximum(mel, FLOOR))

    return features


def open_loader(job: Job, state: Any) -> Loader:
    import numpy as np
    import tensorflow as tf

    from contenders import files

    listed = files.listed(job)
    places, labels = [place for place, _ in listed], [label for _, label in listed]
    dataset = tf.data.Dataset.from_tensor_slices((places, labels))
    options = tf.data.Options()
    options.threading.private_threadpool_size = 0  # one thread per core, which AUTOTUNE distributes
    options.deterministic = job.mode in ("save", "resume", "check")
    if job.mode != "check":
        dataset = dataset.shuffle(len(listed), seed=job.seed)
    dataset = dataset.repeat()
    ops = speech_ops() if job.speech else picture_ops(job)

    def work(sample: Any, seed: Any) -> Any:
        place, label = sample
        data = ops(tf.io.read_file(place), seed)
        return (data, label, tf.shape(data)[0]) if job.speech else (data, label)

    dataset = tf.data.Dataset.zip(dataset, tf.data.Dataset.random(seed=job.seed).batch(2))
    dataset = dataset.map(work, num_parallel_calls=tf.data.AUTOTUNE)
    if job.speech:
        dataset = dataset.padded_batch(job.batch_size, ((None, MELS), (), ()), drop_remainder=True)
    else:
        dataset = dataset.batch(job.batch_size, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE)
    iterator = iter(dataset.prefetch(tf.data.AUTOTUNE).with_options(options))
    checkpoint = tf.train.Checkpoint(iterator=iterator)
    if state is not None:
        _restore(checkpoint, state, job)

    def batches() -> Iterator[Batch]:
        for parts in iterator:
            yield Batch(*(np.asarray(memoryview(part)) for part in parts))  # numpy() would copy

    return Loader(batches(), lambda: _saved(checkpoint, job))


def _saved(checkpoint: Any, job: Job) -> dict[str, bytes]:
    from pathlib import Path

    folder = Path(job.scratch) / "checkpoint"
    prefix = checkpoint.write(str(folder / "iterator"))
    return {path.name: path.read_bytes() for path in Path(prefix).parent.iterdir()}


def _restore(checkpoint: Any, state: dict[str, bytes], job: Job) -> None:
    from pathlib import Path

    folder = Path(job.scratch) / "checkpoint"
    folder.mkdir()
    for name, content in state.items():
        (folder / name).write_bytes(content)
    checkpoint.read(str(folder / "iterator"))


CONTENDER = Contender(
    title="tf.data",
    open=open_loader,
    layout="folder",
    tensors="numpy",
    jobs=PICTURES + SPEECH,
    storages=("local",),
    cannot={"s3": "TensorFlow 2.21 has no S3 file system (tensorflow-io, which had, ended with 2.16)"},
    numbers=(1,),  # its runtime chooses
    resume=True,
    guidance=(
        "parallel map, parallel batch, prefetch, all by AUTOTUNE, deterministic off: Better performance with the "
        "tf.data API",
        "decode_and_crop_jpeg: Analyze tf.data performance, and tf.image's reference",
        "antialias=True where images shrink, as in the reference: tf.image.resize",
        "private_threadpool_size 0, threads by the number of cores: tf.data.ThreadingOptions",
        "iterators in tf.train.Checkpoint: tf.data: Build TensorFlow input pipelines, Iterator Checkpointing",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
