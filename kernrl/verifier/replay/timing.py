"""Speedups and their certainty: paired blocks, an interval, and a noise band calibrated on the GPU itself.

A block times candidate, baseline, baseline, candidate, so that drift of clocks and temperature cancels to first order. Several
baselines share the candidate's calls: candidate, eager, compile, compile, eager, candidate. The log ratio of a baseline and the
candidate in a block is one observation. The estimate is the median over blocks with a 95 % bootstrap interval. A speedup is
significant only when that interval lies outside the band in which the same program against itself falls 99 times in 100.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from kernrl.verifier.base.verdict import Speedup

SURE_BLOCKS, SURE_LONG_BLOCKS, MOST_BLOCKS = 5, 3, 15
"""Blocks from which an interval may decide; the same for programs of a millisecond or more; and most blocks."""

STEADY_US, SHAKY_US = 80.0, 50.0
"""From `STEADY_US`, calls vary so little (0.7 % on an H200; 2 to 3 % at 36 µs) that blocks need no repeats; from `SHAKY_US`,
blocks make each call twice; below, four times."""

LONG_US = 1000.0
"""From here, one block is enough for a clear difference, and three that agree for any other."""

FAR = 3.0
"""A candidate this many times slower than the baseline is timed in one block: slow-downs need no precision."""

CLEAR = 0.1
"""|log ratio| from which a few blocks that agree are enough, if it is also five times the noise."""

NOISE_FLOOR = 0.01
"""Least half-width of the band, as |log ratio|: a reward for one per cent would be a reward for luck."""

OVERHEAD_US = 20.0
"""Below this, the GPU's launch gaps dominate; no speedup is significant there."""

LENGTH_US, LONG_ROUND_US = 2e5, 1e6
"""What timing at length may take, with all that is not timed, unless the fewest rounds take longer; and from which length of a
round a single one is made."""

BOOTSTRAPS = 1000

Block = tuple[float, float]
"""(baseline µs, candidate µs): each the mean of a block's calls."""


def block_of(baseline_us: Sequence[float], candidate_us: Sequence[float]) -> Block:
    """Means of the baseline's and of the candidate's calls."""
    return sum(baseline_us) / len(baseline_us), sum(candidate_us) / len(candidate_us)


def block_order(programs: int, number: int) -> list[int]:
    """In which order block `number`, from 0, calls so many programs, each twice.

    The second half mirrors the first, so that drift cancels between any two. What goes first is slower: each goes first in one
    of `programs` blocks, program 0 in the very first. Every second block is the reverse of the one before in which program of
    any two is the outer one.
    """
    step = -1 if number % 2 else 1
    half = [(step * i - number) % programs for i in range(programs)]
    return half + half[::-1]


@dataclass(frozen=True, slots=True)
class NoiseBand:
    """Half-width of the same-against-same band by duration: (µs, |log ratio|) in ascending order of time."""

    points: tuple[tuple[float, float], ...]

    def at(self, us: float) -> float:
        """Half-width for a program of this duration, interpolated linearly in log time."""
        times, widths = zip(*self.points, strict=True)
        return max(NOISE_FLOOR, float(np.interp(math.log(max(us, 1e-3)), np.log(times), widths)))


def calls_per_block(us: float) -> int:
    """How often a block repeats its calls: short programs need repeats, given the clock's resolution."""
    return 1 if us >= STEADY_US else 2 if us >= SHAKY_US else 4


def far_slower(baseline_us: Sequence[float], candidate_us: Sequence[float]) -> bool:
    """Whether the first block shows a candidate that is far slower. All calls must agree: one in a thousand is far too long."""
    return min(candidate_us) > FAR * max(baseline_us)


class Sampling:
    """The blocks of one candidate and one baseline, and how many more are needed until the answer is certain.

    Two that agree if the difference is clear (one for long programs), else 5 to 15, all 15 where they are far apart; one if the
    candidate is far slower.
    """

    def __init__(self, noise: NoiseBand, baseline_us: Sequence[float], candidate_us: Sequence[float]):
        """The times are of the first block's calls. It warmed up both programs, and counts only if blocks need no repeats."""
        self._noise = noise
        first = block_of(baseline_us, candidate_us)
        us = shorter_us([first])
        self.calls = calls_per_block(us)
        """How often each further block repeats its calls."""
        self._least, self._sure = (2, SURE_BLOCKS) if us < LONG_US else (1, SURE_LONG_BLOCKS)
        self._far = far_slower(baseline_us, candidate_us)
        self.blocks = [first] if self.calls == 1 or self._far else []

    def wanted(self) -> int:
        """How many more blocks; 0 if the answer is certain. Asking for several at once keeps the GPU busy."""
        count = len(self.blocks)
        if self._far or count >= MOST_BLOCKS:
            return 0
        if count < self._least:
            return self._least - count
        logs, band = _logs(self.blocks), self._noise.at(shorter_us(self.blocks))
        clear = max(CLEAR, 5 * band)
        agree = max(logs) - min(logs) < clear  # one call in a thousand is far too long
        if agree and (max(logs) < -clear or min(logs) > clear):
            return 0
        if count >= self._sure and _decided(logs, band) and _width(logs) < clear:
            return 0
        return max(2, self._sure - count)


def shorter_us(blocks: Sequence[Block]) -> float:
    """Median time of the shorter program, whose noise is the larger."""
    return min(float(np.median([b for b, _ in blocks])), float(np.median([c for _, c in blocks])))


def _logs(blocks: Sequence[Block]) -> list[float]:
    return [math.log(b / c) for b, c in blocks]


def median_log(blocks: Sequence[Block]) -> float:
    """Median of the blocks' log ratios."""
    return float(np.median(_logs(blocks)))


def _decided(logs: Sequence[float], band: float) -> bool:
    """Whether the interval lies entirely outside the band or entirely inside it, so that more blocks change nothing."""
    (low, high), (least, most) = _bounds(logs, band), interval(logs)
    return low > band or high < -band or (-band < least and most < band)


def _width(logs: Sequence[float]) -> float:
    """Of the interval. A wide one is a disturbance that came with some of the blocks, and may hold most of the first few."""
    low, high = interval(logs)
    return high - low


def _bounds(logs: Sequence[float], band: float) -> tuple[float, float]:
    """`interval`, widened by the noise of so few blocks if it is only their range."""
    low, high = interval(logs)
    wide = band * math.sqrt(SURE_BLOCKS / len(logs)) if len(logs) < SURE_BLOCKS else 0.0
    if len(logs) == 1 and logs[0] < -math.log(FAR):  # a single block, without the repeats that short programs need
        wide = max(wide, CLEAR)
    return low - wide, high + wide


def interval(logs: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median of per-block log ratios; with fewer than five blocks, their range."""
    if len(logs) < SURE_BLOCKS:
        return min(logs), max(logs)
    medians = np.sort(logs)[_resampled(len(logs))].mean(axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(low), float(high)


@cache
def _resampled(n: int) -> np.ndarray:
    """For `BOOTSTRAPS` resamples of n sorted numbers, the two ranks whose mean is the median: int [BOOTSTRAPS, 2]."""
    drawn = np.sort(np.random.default_rng(0).integers(n, size=(BOOTSTRAPS, n)), axis=1)
    return drawn[:, [(n - 1) // 2, n // 2]]


def speedup(blocks: Sequence[Block], noise: NoiseBand) -> Speedup:
    """Baseline time over candidate time, with its interval, and whether it lies outside the noise band."""
    logs, shortest = _logs(blocks), shorter_us(blocks)
    band = noise.at(shortest)
    low, high = _bounds(logs, band)
    outside = low > band or high < -band
    slower_of_both = max(float(np.median([b for b, _ in blocks])), float(np.median([c for _, c in blocks])))
    return Speedup(math.exp(median_log(blocks)), math.exp(low), math.exp(high), outside and slower_of_both >= OVERHEAD_US)


def rounds_at_length(us: float, round_us: float) -> tuple[int, int]:
    """The fewest and the most rounds of timing at length, for a program that takes `us` and rounds that take `round_us`."""
    fewest = SURE_BLOCKS if us < LONG_US else SURE_LONG_BLOCKS if round_us < LONG_ROUND_US else 1
    return fewest, max(fewest, min(MOST_BLOCKS, int(LENGTH_US / round_us)))


def all_clear(compared: Sequence[Sequence[Block]], alike: Sequence[Block]) -> bool:
    """Whether all blocks of every pair show the same clear difference, so that further rounds change nothing."""
    clear = max(CLEAR, 5 * own_noise(alike).at(1.0))
    return all(min(logs) > clear or max(logs) < -clear for logs in map(_logs, compared))


def own_noise(alike: Sequence[Block]) -> NoiseBand:
    """The noise band at the time of `alike`, blocks of one program against itself: what the median of so many blocks stays
    within 99 times in 100."""
    logs = np.sort(_logs(alike))
    return NoiseBand(((1.0, null_quantile(logs[_resampled(len(logs))].mean(axis=1).tolist())),))


def null_quantile(ratios: Sequence[float], q: float = 0.99) -> float:
    """The half-width that contains a share `q` of same-against-same |log ratios|."""
    return float(np.quantile(np.abs(np.asarray(ratios)), q))
