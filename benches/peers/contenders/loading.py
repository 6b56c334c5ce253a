"""PyTorch's DataLoader over files or objects, for the contenders that differ only in how they decode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from contenders import clips, files
from contenders.protocol import RETRY_AFTER_S, SPEECH, Batch, Contender, Job, Loader

GUIDANCE = (
    "calibrated num_workers, persistent_workers: torch.utils.data documentation, Multi-process Data Loading",
    "prefetch_factor 2, its default",
    f"boto3 repeats a request after {RETRY_AFTER_S} s instead of 60 s: our choice, as Amazon S3's documentation "
    "recommends for small objects",
    "one thread of torch in each worker: DataLoader's own default",
    "resume by torchdata's StatefulDataLoader: torchdata documentation, Stateful DataLoader Tutorial",
)


class Samples:
    """A map-style data set."""

    def __init__(self, job: Job, make: Callable[[Job], Callable[[bytes], Any]]) -> None:
        self._job, self._make = job, make
        self._listed = files.listed(job)
        self._run: Callable[[bytes], Any] | None = None

    def __len__(self) -> int:
        return len(self._listed)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self._run is None:
            self._run = self._make(self._job)
        place, label = self._listed[index]
        return self._run(files.read(place)), label


def settings(job: Job, collate: Callable[[Any], Batch]) -> dict[str, Any]:
    """Returns the settings of every DataLoader: torch's own, and those that peers derive from it."""
    return {
        "batch_size": job.batch_size,
        "num_workers": job.workers,
        "persistent_workers": job.workers > 0,
        "collate_fn": collate,
        "drop_last": True,
    }


def without_end(loader: Any, state: Any) -> Loader:
    """Yields the batches of a DataLoader epoch after epoch, from a saved state if there is one."""
    if state is not None:
        loader.load_state_dict(state)

    def batches() -> Iterator[Batch]:
        while True:
            yield from loader

    return Loader(batches(), getattr(loader, "state_dict", None))


def open_loader(
    job: Job, state: Any, dataset: Any, collate: Callable[[Any], Batch], **options: Any
) -> Loader:
    """Returns torch's DataLoader, or torchdata's if a state is required."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    torch.manual_seed(job.seed)  # the source of workers' seeds
    if job.mode in ("save", "resume"):
        from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader
    return without_end(DataLoader(dataset, **settings(job, collate), **options), state)


def of_files(
    job: Job, state: Any, make: Callable[[Job], Callable[[bytes], Any]], collate: Callable[[Any], Batch]
) -> Loader:
    import torch

    generator = torch.Generator().manual_seed(job.seed)
    shuffled = job.mode != "check"
    return open_loader(
        job, state, Samples(job, make), collate, shuffle=shuffled, generator=generator if shuffled else None
    )


def of_clips(decoder: str, make: Callable[[], Callable[[bytes], Any]]) -> Contender:
    """Returns the DataLoader on speech, with one way to compute an audio clip's features."""
    return Contender(
        title=f"PyTorch DataLoader, {decoder}",
        open=lambda job, state: of_files(job, state, lambda _: make(), clips.collate),
        layout="folder",
        jobs=SPEECH,
        resume=True,
        environment="torch",
        guidance=GUIDANCE,
    )
