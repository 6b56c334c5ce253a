"""feedstock with all its defaults: its memory is compared with that of the settings used for rates."""

from __future__ import annotations

from typing import Any

from contenders import feedstock
from contenders.protocol import PICTURES, SPEECH, Contender, Job, Loader, main


def open_loader(job: Job, state: Any) -> Loader:
    return feedstock.open_loader(job, state, defaults=True, as_they_are=True)


CONTENDER = Contender(
    title="feedstock, its defaults",
    open=open_loader,
    layout="parquet",
    tensors="numpy",
    jobs=PICTURES + SPEECH,
    modes=("check", "stall"),
    cannot={"resume": "measured with its other settings"},
    environment="feedstock",
    guidance=(
        "windows of 512 MiB to shuffle in, a budget of 1 GiB, 4 batches in memory, up to 64 lanes: the data set stays "
        "in memory, as it is smaller",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
