"""PyTorch's DataLoader on speech, with TorchCodec."""

from __future__ import annotations

from contenders import clips
from contenders.loading import of_clips
from contenders.protocol import main

CONTENDER = of_clips("TorchCodec", clips.with_torchcodec)

if __name__ == "__main__":
    main(CONTENDER)
