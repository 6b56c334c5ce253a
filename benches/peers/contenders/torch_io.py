"""PyTorch's DataLoader with torchvision.io's JPEG decoder and transforms on u8 tensors."""

from __future__ import annotations

from typing import Any

from contenders import loading, pictures
from contenders.protocol import Contender, Job, Loader, main


def open_loader(job: Job, state: Any) -> Loader:
    return loading.of_files(job, state, pictures.with_torchvision, pictures.collate)


CONTENDER = Contender(
    title="PyTorch DataLoader, torchvision.io",
    open=open_loader,
    layout="folder",
    resume=True,
    environment="torch",
    guidance=(
        *loading.GUIDANCE,
        "u8 tensors, bilinear, transforms v2: torchvision documentation, Transforming images, Performance",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
