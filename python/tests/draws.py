"""The random numbers of ops, as ``ops/src/seed.rs`` documents them, for references that need the drawn parameters."""

from __future__ import annotations

import math

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def _absorb(state: int, word: int) -> int:
    z = ((state ^ word) + GAMMA) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Draws:
    """The generator of the op at ``path``: its index in the chain, or the index of its group and its index there."""

    def __init__(self, seed: int, epoch: int, sample: int, *path: int) -> None:
        state = 0
        for word in (seed, epoch, sample, *path):
            state = _absorb(state, word)
        # The state of xoshiro256++, as its authors seed it: by SplitMix64.
        self._words = [_absorb(0, (state + index * GAMMA) & MASK) for index in range(4)]

    def _next(self) -> int:
        def rotated(value: int, bits: int) -> int:
            return ((value << bits) | (value >> (64 - bits))) & MASK

        s = self._words
        result = (rotated((s[0] + s[3]) & MASK, 23) + s[0]) & MASK
        t = (s[1] << 17) & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotated(s[3], 45)
        return result

    def uniform(self, low: float, high: float) -> float:
        return low + (self._next() >> 11) * 2.0**-53 * (high - low)

    def chance(self, probability: float) -> bool:
        return self.uniform(0.0, 1.0) < probability

    def below(self, bound: int) -> int:
        threshold = -bound % 2**32 % bound
        while True:
            product = (self._next() >> 32) * bound
            if product % 2**32 >= threshold:
                return product >> 32

    def normal(self) -> float:
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform(0.0, 1.0)))
        return radius * math.cos(2.0 * math.pi * self.uniform(0.0, 1.0))

    def dirichlet(self, alpha: float, count: int) -> list[float]:
        weights = [self._gamma(alpha) for _ in range(count)]
        return [weight / sum(weights) for weight in weights]

    def _gamma(self, shape: float) -> float:
        if shape < 1.0:
            power = (1.0 - self.uniform(0.0, 1.0)) ** (1.0 / shape)
            return self._gamma(shape + 1.0) * power
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = (1.0 + c * x) ** 3
            u = 1.0 - self.uniform(0.0, 1.0)
            if v > 0.0 and math.log(u) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v
