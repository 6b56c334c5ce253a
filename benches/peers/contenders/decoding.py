"""The whole processing of a sample, for contenders that deliver bytes and leave decoding to the best Python
libraries: torchvision.io for images, libsndfile and soxr for audio clips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contenders.protocol import Batch, Job


def decoder(job: Job) -> Callable[[bytes], Any]:
    """Returns a function that creates its decoder at the first call, so that each worker process gets one."""
    made: list[Callable[[bytes], Any]] = []

    def run(encoded: bytes) -> Any:
        if not made:
            import torch
            from torch.utils.data import get_worker_info

            torch.set_num_threads(1)
            if get_worker_info() is None:
                torch.seed()  # all new processes start with the same seed; PyTorch sets those of its own workers
            if job.speech:
                from contenders import clips

                made.append(clips.with_soxr())
            else:
                from contenders import pictures

                made.append(pictures.with_torchvision(job))
        return made[0](encoded)

    return run


class Decoder:
    """The same as an object that can be pickled into worker processes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._run: Callable[[bytes], Any] | None = None

    def __call__(self, encoded: bytes) -> Any:
        if self._run is None:
            self._run = decoder(self._job)
        return self._run(encoded)

    def __getstate__(self) -> dict[str, Any]:
        return {"_job": self._job, "_run": None}


def collate(job: Job) -> Callable[[list[tuple[Any, int]]], Batch]:
    if job.speech:
        from contenders import clips

        return clips.collate
    from contenders import pictures

    return pictures.collate
