"""SPDL's pipeline of threads around torchvision's decoder and transforms; for speech, around soundfile and
soxr."""

from __future__ import annotations

from typing import Any

from contenders import spdl
from contenders.decoding import decoder
from contenders.protocol import PICTURES, SPEECH, Contender, Job, Loader, main


def open_loader(job: Job, state: Any) -> Loader:
    return spdl.of_files(job, decoder)


CONTENDER = Contender(
    title="SPDL, torchvision and soundfile",
    open=open_loader,
    layout="folder",
    jobs=PICTURES + SPEECH,
    cannot={"resume": "SPDL leaves the position to the source"},
    environment="spdl",
    guidance=(
        *spdl.GUIDANCE,
        "PyTorch functions in threads: SPDL documentation, Examples, Multi thread preprocessing",
    ),
)

if __name__ == "__main__":
    main(CONTENDER)
