"""The random numbers of a function of rows."""

from __future__ import annotations

import numpy as np

_WORD = 0xFFFF_FFFF


def generator(seed: int, epoch: int, sample: int, number: int) -> np.random.Generator:
    """Returns the generator of one sample: a pure function of the arguments, the same on every machine.

    Each argument is two 32-bit words of the entropy, so that no two combinations have the same words.

    Args:
        seed: The seed of the pipeline's ops.
        epoch: The epoch.
        sample: The sample's id.
        number: The number of the ``map_rows`` step, from 0.
    """
    words: list[int] = []
    for value in (seed, epoch, sample, number):
        words += (value & _WORD, value >> 32 & _WORD)
    entropy = np.random.SeedSequence(words)
    return np.random.Generator(np.random.PCG64(entropy))
