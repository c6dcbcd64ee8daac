"""Figures with intervals: pass@k, fast_p, geometric means, and the bootstrap over tasks that all of them share.

Candidates of one task rise and fall together, so the task is the unit that is resampled, never the candidate. Every figure
here is a ratio of two sums over tasks (a mean is the ratio of a sum to a count; a geometric mean the exponential of such a
ratio), so one matrix of task counts serves all the figures of an evaluation, and a figure's resamples are two products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = Sequence[float] | NDArray[Any]

CHUNK_CELLS = 4_000_000
"""Cells of the count matrix made at a time: 32 MB."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its interval. `value` is None where there was nothing to measure, the ends where one task, or tasks that
    all say the same, tell nothing of the spread."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """`{value, low, high}`."""
        return asdict(self)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that at least one of `k` candidates is correct, drawn without replacement from `samples` of which
    `correct` are: 1 - C(n-c, k) / C(n, k).

    This is the unbiased estimate of 1 - (1-p)^k (Chen et al. 2021, "Evaluating Large Language Models Trained on Code",
    equation 1).

    Raises:
        ValueError: not 0 <= correct <= samples, or not 1 <= k <= samples.
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {correct} correct in {samples} is not defined")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def fast_p(speedups_x: Sequence[float | None], p: float) -> float:
    """Share of all candidates that are correct and strictly more than `p` times as fast as the baseline.

    After Ouyang et al. 2025, "KernelBench: Can LLMs Write Efficient GPU Kernels?", section 3. The denominator is every
    candidate, wrong ones too, so fast_0 is the share of correct ones.

    Args:
        speedups_x: One entry a candidate: its speedup, or None where it is not correct. A correct one that was not timed
            is NaN; it counts at p = 0 only.
    """
    if not speedups_x:
        raise ValueError("fast_p of no candidates is not defined")
    return sum(s is not None and (s > p or (p == 0 and math.isnan(s))) for s in speedups_x) / len(speedups_x)


def geometric_mean(values: Sequence[float]) -> float:
    """The exponential of the mean logarithm: halving and doubling cancel. Computed in logarithms, so it cannot underflow.

    Raises:
        ValueError: no values, or one that is not positive.
    """
    if not values or min(values) <= 0:
        raise ValueError("a geometric mean needs at least one value, all of them positive")
    return math.exp(math.fsum(map(math.log, values)) / len(values))


class TaskBootstrap:
    """Resamples of the tasks of one evaluation, shared by all its figures, so that they can be compared with each other."""

    def __init__(
        self,
        tasks: int,
        *,
        resamples: int = 10_000,
        level: float = 0.95,
        method: Literal["bca", "percentile"] = "bca",
        seed: int = 0,
    ):
        self.tasks, self.resamples, self.level, self.method, self.seed = tasks, resamples, level, method, seed

    @cached_property
    def counts_BT(self) -> NDArray[Any]:
        """[resamples, tasks]: how often each task was drawn; every row sums to `tasks`."""
        # as floats they need no conversion for every figure; where that would be gigabytes, they are kept small
        dtype = np.float64 if self.resamples * self.tasks <= 8 * CHUNK_CELLS else np.uint16
        rng = np.random.default_rng(self.seed)
        rows = max(1, CHUNK_CELLS // max(1, self.tasks))
        share = np.full(self.tasks, 1 / self.tasks)
        parts = [
            rng.multinomial(self.tasks, share, size=min(rows, self.resamples - start)).astype(dtype)
            for start in range(0, self.resamples, rows)
        ]
        return np.concatenate(parts)

    def share(self, shares_T: Numbers) -> Estimate:
        """Mean over the tasks of a share in [0, 1], such as a task's share of correct candidates.

        Where every task says 0, or every task 1, the bootstrap has no spread and would claim certainty; the interval is then
        that of Clopper and Pearson for as many trials as there are tasks, whose ends have a closed form there. One task tells
        nothing of how tasks differ, and has no interval.
        """
        shares = np.asarray(shares_T, np.float64)
        estimate = self._ratio(shares, np.ones_like(shares))
        if self.tasks == 1:
            return estimate
        edge = ((1 - self.level) / 2) ** (1 / self.tasks)
        if estimate.low is None and estimate.value == 0:
            return Estimate(0.0, 0.0, 1 - edge)
        if estimate.low is None and estimate.value == 1:
            return Estimate(1.0, edge, 1.0)
        return estimate

    def geometric_mean(self, log_sums_T: Numbers, counts_T: Numbers) -> Estimate:
        """Geometric mean over all candidates that count, as `exp(sum of logs / number)`.

        Args:
            log_sums_T: [tasks] sum of the natural logarithms of a task's values.
            counts_T: [tasks] how many values that is; 0 where a task has none.
        """
        logs = self._ratio(np.asarray(log_sums_T, np.float64), np.asarray(counts_T, np.float64))
        return Estimate(*(None if x is None else math.exp(x) for x in (logs.value, logs.low, logs.high)))

    def difference(self, before_T: Numbers, after_T: Numbers) -> Estimate:
        """Mean over the tasks of after - before: both were measured on the same tasks, so the tasks' own spread cancels."""
        change = np.asarray(after_T, np.float64) - np.asarray(before_T, np.float64)
        return self._ratio(change, np.ones_like(change))

    def _ratio(self, top_T: Floats, bottom_T: Floats) -> Estimate:
        """sum(top) / sum(bottom) with its interval; no interval where all tasks that are heard agree."""
        if top_T.shape != (self.tasks,) or bottom_T.shape != (self.tasks,):
            raise ValueError(f"a figure over {self.tasks} tasks needs one number a task, not {top_T.shape}, {bottom_T.shape}")
        heard = bottom_T > 0
        if not heard.any():
            return Estimate(None)
        value = float(top_T.sum() / bottom_T.sum())
        if np.ptp(top_T[heard] / bottom_T[heard]) <= 1e-12 * max(1.0, abs(value)):
            return Estimate(value)
        sums_top = self._sums(top_T)
        sums_bottom = np.full_like(sums_top, self.tasks) if (bottom_T == 1).all() else self._sums(bottom_T)
        drawn = sums_bottom > 0  # a resample may hold no task that is heard
        ratios = sums_top[drawn] / sums_bottom[drawn]
        tails = np.array([(1 - self.level) / 2, (1 + self.level) / 2])
        if self.method == "bca":
            tails = bca_tails(value, ratios, jackknife(top_T, bottom_T), tails)
        low, high = np.quantile(ratios, tails)
        return Estimate(value, float(low), float(high))

    def _sums(self, values_T: Floats) -> Floats:
        """[resamples] the sum of each resample; a chunk at a time, so that the counts are never all held as floats."""
        rows = max(1, CHUNK_CELLS // max(1, self.tasks))
        return np.concatenate([self.counts_BT[i : i + rows] @ values_T for i in range(0, self.resamples, rows)])


def jackknife(top: Floats, bottom: Floats) -> Floats:
    """The ratio with each task left out in turn, where that leaves anything."""
    rest = bottom.sum() - bottom
    keep = rest > 0
    return (top.sum() - top)[keep] / rest[keep]


def bca_tails(value: float, ratios: Floats, left_out: Floats, tails: Floats) -> Floats:
    """The tail probabilities of a bias-corrected and accelerated interval (Efron 1987, "Better Bootstrap Confidence
    Intervals", section 4; ties among the resamples count half).

    Falls back to `tails`, the percentile interval, where the correction is not defined.
    """
    below = np.count_nonzero(ratios < value) + 0.5 * np.count_nonzero(ratios == value)
    share = below / len(ratios)
    deviation = left_out.mean() - left_out
    spread = (deviation**2).sum()
    if not 0 < share < 1 or spread == 0:
        return tails
    bias = NormalDist().inv_cdf(share)
    acceleration = (deviation**3).sum() / (6 * spread**1.5)
    z = bias + np.array([NormalDist().inv_cdf(t) for t in tails])
    return np.array([NormalDist().cdf(bias + x / (1 - acceleration * x)) for x in z])
