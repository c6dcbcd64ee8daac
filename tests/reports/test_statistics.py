"""Statistics against brute force, scipy and the properties their definitions promise."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap, norm

from kernrl.reports.statistics import TaskBootstrap, bca_tails, fast_p, geometric_mean, jackknife, pass_at_k

SPEEDUPS = st.lists(st.none() | st.floats(0.01, 100), min_size=1, max_size=30)


@given(st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(data: st.DataObject) -> None:
    samples = data.draw(st.integers(1, 9))
    correct, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    subsets = list(itertools.combinations([i < correct for i in range(samples)], k))
    assert pass_at_k(samples, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_is_unbiased() -> None:
    p, n, k = 0.3, 6, 3
    expected = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert expected == pytest.approx(1 - (1 - p) ** k)


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)])
def test_pass_at_k_refuses_what_is_not_defined(samples: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(samples, correct, k)


def test_fast_p_is_strict_and_over_all_candidates() -> None:
    speedups = [None, 0.5, 1.0, 1.2, 3.0, math.nan]
    assert fast_p(speedups, 0) == 5 / 6  # untimed but correct counts here alone
    assert fast_p(speedups, 0.5) == 3 / 6
    assert fast_p(speedups, 1) == 2 / 6
    assert fast_p(speedups, 1.2) == 1 / 6
    assert fast_p(speedups, 3) == 0


@given(SPEEDUPS, st.floats(0, 10), st.floats(0, 10))
def test_fast_p_falls_with_p(speedups: list[float | None], p: float, q: float) -> None:
    assert fast_p(speedups, min(p, q)) >= fast_p(speedups, max(p, q))


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20))
def test_geometric_mean_of_inverses_is_the_inverse(values: list[float]) -> None:
    mean = geometric_mean(values)
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)
    assert geometric_mean([1 / v for v in values]) == pytest.approx(1 / mean)


def test_geometric_mean_neither_underflows_nor_overflows() -> None:
    assert geometric_mean([1e-300] * 50 + [1e300] * 50) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="positive"):
        geometric_mean([1.0, 0.0])


@pytest.mark.parametrize(("method", "scipy_method"), [("percentile", "percentile"), ("bca", "BCa")])
def test_share_agrees_with_scipy(method: str, scipy_method: str) -> None:
    shares = np.random.default_rng(3).beta(0.6, 2.0, 60)
    ours = TaskBootstrap(60, resamples=40_000, method=method).share(shares)  # pyright: ignore[reportArgumentType]
    theirs = bootstrap((shares,), np.mean, n_resamples=40_000, method=scipy_method, rng=1).confidence_interval
    assert ours.value == pytest.approx(shares.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=2e-3)


def test_geometric_mean_interval_agrees_with_scipy() -> None:
    rng = np.random.default_rng(5)
    counts = rng.integers(0, 5, 50)
    log_sums = np.array([rng.normal(0.4, 0.8, n).sum() for n in counts])

    def pooled(tops: np.ndarray, bottoms: np.ndarray, axis: int) -> np.ndarray:
        return np.exp(tops.sum(axis=axis) / bottoms.sum(axis=axis))

    ours = TaskBootstrap(50, resamples=40_000).geometric_mean(log_sums, counts)
    theirs = bootstrap((log_sums, counts), pooled, paired=True, n_resamples=40_000, rng=1).confidence_interval
    assert ours.value == pytest.approx(np.exp(log_sums.sum() / counts.sum()))
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=5e-3)


def test_bootstrap_equals_every_resample_enumerated() -> None:
    shares = np.array([0.0, 0.25, 0.75, 1.0])
    every = np.array([shares[list(pick)].mean() for pick in itertools.product(range(4), repeat=4)])
    ours = TaskBootstrap(4, resamples=60_000, method="percentile").share(shares)
    assert (ours.low, ours.high) == pytest.approx(tuple(np.quantile(every, [0.025, 0.975])), abs=0.07)


def test_bca_tails_shift_by_the_bias_and_stretch_by_the_acceleration() -> None:
    ratios, tails = np.arange(1000.0), np.array([0.025, 0.975])
    even = np.array([-1.0, 1.0, -1.0, 1.0])
    assert bca_tails(499.5, ratios, even, tails) == pytest.approx(tails, abs=1e-3)
    z = norm.ppf(0.7)  # the figure lies above 70 % of its resamples
    assert bca_tails(699.5, ratios, even, tails) == pytest.approx(norm.cdf(2 * z + norm.ppf(tails)), abs=2e-3)
    skewed = bca_tails(499.5, ratios, np.array([0.0, 0.0, 0.0, -1.0]), tails)
    assert skewed[0] > tails[0]  # one task pulls up: the interval reaches further that way
    assert skewed[1] > tails[1]
    assert bca_tails(2000.0, ratios, even, tails) is tails  # no correction is defined


def test_jackknife_equals_brute_force() -> None:
    top, bottom = np.array([1.0, 2.0, 0.0, 5.0]), np.array([1.0, 3.0, 0.0, 2.0])
    brute = [np.delete(top, i).sum() / np.delete(bottom, i).sum() for i in range(4)]
    assert jackknife(top, bottom) == pytest.approx(brute)


def test_intervals_cover_the_truth() -> None:
    rng = np.random.default_rng(0)
    bootstrap_40, truth, hits = TaskBootstrap(40, resamples=2000), 0.3, 0
    for _ in range(300):
        probability = rng.beta(3, 7, 40)  # tasks differ: mean 0.3
        estimate = bootstrap_40.share(rng.binomial(4, probability) / 4)
        assert estimate.low is not None
        assert estimate.high is not None
        hits += estimate.low <= truth <= estimate.high
    assert 0.90 <= hits / 300 <= 0.99


@pytest.mark.parametrize("tasks", [2, 12, 100])
@pytest.mark.parametrize("share", [0, 1])
def test_agreement_of_all_tasks_is_no_certainty(tasks: int, share: int) -> None:
    exact = binomtest(share * tasks, tasks).proportion_ci(method="exact")
    ours = TaskBootstrap(tasks).share(np.full(tasks, float(share)))
    assert (ours.low, ours.high) == pytest.approx((exact.low, exact.high))


def test_no_interval_where_nothing_tells_the_spread() -> None:
    one = TaskBootstrap(1).geometric_mean([math.log(2)], [1])
    assert (one.value, one.low, one.high) == (pytest.approx(2), None, None)
    assert TaskBootstrap(1).share([1.0]).low is None  # and not [3, 100]
    assert TaskBootstrap(3).geometric_mean([0, 0, 0], [0, 0, 0]).value is None
    assert TaskBootstrap(3).share([0.5, 0.5, 0.5]).low is None


def test_paired_difference_cancels_what_tasks_share() -> None:
    rng = np.random.default_rng(2)
    before = rng.uniform(0, 0.8, 50)
    after = before + rng.normal(0.1, 0.02, 50)
    paired = TaskBootstrap(50, resamples=4000)
    change = paired.difference(before, after)
    apart = paired.share(before)
    assert change.value == pytest.approx((after - before).mean())
    assert change.low is not None
    assert change.low > 0.08
    assert apart.high is not None
    assert apart.low is not None
    assert change.high is not None
    assert change.high - change.low < 0.2 * (apart.high - apart.low)


def test_same_seed_same_interval() -> None:
    shares = np.random.default_rng(1).uniform(size=20)
    assert TaskBootstrap(20, seed=4).share(shares) == TaskBootstrap(20, seed=4).share(shares)
    assert TaskBootstrap(20, seed=4).share(shares) != TaskBootstrap(20, seed=5).share(shares)


def test_one_number_a_task() -> None:
    with pytest.raises(ValueError, match="one number a task"):
        TaskBootstrap(3).share([0.5, 0.5])
