"""Sizes as people write them: powers of two, multiples of eight or ten, round numbers, and any number at all."""

from __future__ import annotations

import math
from random import Random


def size(rng: Random, low: int, high: int) -> int:
    """A size between the two, the logarithm of which is uniform."""
    n = round(math.exp(rng.uniform(math.log(low), math.log(high))))
    kind = rng.random()
    if kind < 0.35:
        n = 2 ** round(math.log2(n))
    elif kind < 0.65:
        step = rng.choice([s for s in (4, 8, 12, 16, 32, 48, 64, 128) if s * 2 <= max(n, 8)])
        n = max(step, n // step * step)
    elif kind < 0.85:
        digit = 10 ** max(0, len(str(n)) - rng.choice((1, 1, 2)))
        n = max(digit, n // digit * digit)
    return min(max(n, low), high)


def batch(rng: Random) -> int:
    """The first axis of images and sequences."""
    return rng.choice((1, 2, 4, 8, 16, 32, 64, 128)) if rng.random() < 0.5 else size(rng, 1, 1024)


def window(rng: Random) -> int:
    """The window of a convolution or pool: mostly three, seldom as many as anybody takes."""
    return rng.choice((1, 2, 3, 3, 3, 3, 4, 5, 5, 7)) if rng.random() < 0.8 else rng.randrange(2, 40)


def step(rng: Random) -> int:
    """A stride or a dilation that is not one."""
    return rng.choice((2, 2, 2, 3, 4)) if rng.random() < 0.7 else rng.randrange(2, 20)
