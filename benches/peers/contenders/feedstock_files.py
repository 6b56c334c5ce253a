"""feedstock on the given image files, which shows the gain of its own shards."""

from __future__ import annotations

from typing import Any

from contenders import feedstock
from contenders.protocol import PICTURES, Contender, Job, Loader, main


def open_loader(job: Job, state: Any) -> Loader:
    return feedstock.open_loader(job, state, as_they_are=True)


CONTENDER = Contender(
    title="feedstock, files as they are",
    open=open_loader,
    layout="parquet",
    tensors="numpy",
    jobs=PICTURES,
    cannot={
        "speech": "feedstock itself reads the clips as they are",
        "resume": "measured with its own shards",
    },
    numbers=(1,),
    environment="feedstock",
    guidance=("as feedstock, from the Parquet files that peers read",),
)

if __name__ == "__main__":
    main(CONTENDER)
