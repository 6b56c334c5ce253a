"""PyTorch's DataLoader on speech, with soundfile and soxr."""

from __future__ import annotations

from contenders import clips
from contenders.loading import of_clips
from contenders.protocol import main

CONTENDER = of_clips("soundfile and soxr", clips.with_soxr)

if __name__ == "__main__":
    main(CONTENDER)
