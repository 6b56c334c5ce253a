"""feedstock with batches as torch tensors: the same work, with torch's import before the first batch."""

from __future__ import annotations

from typing import Any

from contenders import feedstock
from contenders.protocol import PICTURES, SPEECH, Contender, Job, Loader, main


def open_loader(job: Job, state: Any) -> Loader:
    return feedstock.open_loader(job, state, "torch")


CONTENDER = Contender(
    title="feedstock, torch tensors",
    open=open_loader,
    layout="native",
    reads=feedstock.CONTENDER.reads,
    jobs=PICTURES + SPEECH,
    prepare=feedstock.prepare,
    numbers=(1,),
    resume=True,
    guidance=("as feedstock; batches as views in torch",),
)

if __name__ == "__main__":
    main(CONTENDER)
