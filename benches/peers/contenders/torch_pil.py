"""PyTorch's DataLoader with Pillow, as in most training programs."""

from __future__ import annotations

from typing import Any

from contenders import loading, pictures
from contenders.protocol import Contender, Job, Loader, main


def open_loader(job: Job, state: Any) -> Loader:
    return loading.of_files(job, state, pictures.with_pillow, pictures.collate)


CONTENDER = Contender(
    title="PyTorch DataLoader, Pillow",
    open=open_loader,
    layout="folder",
    resume=True,
    environment="torch",
    guidance=(
        *loading.GUIDANCE,
        "transforms v2 on Pillow's images: torchvision documentation, Transforming images, Performance",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
