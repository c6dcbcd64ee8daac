"""The statistics of timing, on made-up clocks. No test here looks at a real one."""

from __future__ import annotations

import random

import pytest

from kernrl.verifier.timing import Block, NoiseBand, interval, look, null_quantile, speedup

BAND = NoiseBand(((10.0, 0.03), (1000.0, 0.005)))


def clock(baseline_us: float, candidate_us: float, noise: float, seed: int):
    rng = random.Random(seed)

    def blocks(count: int, calls: int) -> list[Block]:
        return [(baseline_us * rng.gauss(1, noise), candidate_us * rng.gauss(1, noise)) for _ in range(count)]

    return blocks


def judged(baseline_us: float, candidate_us: float, noise: float = 0.001, seed: int = 0, band: NoiseBand = BAND):
    blocks = look(clock(baseline_us, candidate_us, noise, seed), band)
    return speedup(blocks, band), len(blocks)


def test_the_band_is_interpolated_in_log_time_and_has_a_floor() -> None:
    assert BAND.at(10) == pytest.approx(0.03)
    assert BAND.at(100) == pytest.approx(0.0175)
    assert BAND.at(1) == pytest.approx(0.03)
    assert BAND.at(5000) == 0.01


def test_the_same_program_is_not_faster_than_itself() -> None:
    false = sum(judged(500, 500, 0.004, seed)[0].significant for seed in range(400))
    assert false <= 4


def test_a_loss_of_five_per_cent_is_seen() -> None:
    seen = [judged(500, 525, 0.004, seed)[0] for seed in range(200)]
    assert sum(s.significant and s.high < 1 for s in seen) >= 190


def test_plain_answers_need_few_blocks() -> None:
    assert judged(1500, 3000)[1] == 1
    assert judged(500, 1000)[1] == 2
    assert judged(1000, 500)[1] == 2
    assert judged(50, 100)[1] == 2
    assert judged(100, 50)[1] == 2
    assert judged(500, 490)[1] >= 5


def test_far_slower_takes_one_look_whose_interval_is_wide() -> None:
    for us in (30, 300, 3000):
        found, blocks = judged(us, 3.5 * us)
        assert blocks == 1
        assert found.significant
        assert found.value == pytest.approx(1 / 3.5, rel=0.03)
        assert found.high / found.low > 1.2
    assert judged(300, 2.5 * 300)[1] == 2
    assert judged(3.5 * 300, 300)[1] == 2, "what is far faster is looked at twice"


def asked(us: float) -> list[tuple[int, int]]:
    """How many blocks are asked for, and of how many calls, where two programs are alike."""
    found: list[tuple[int, int]] = []

    def blocks(count: int, calls: int) -> list[Block]:
        found.append((count, calls))
        return [(us, us)] * count

    look(blocks, BAND)
    return found


def test_the_first_block_warms_and_counts_unless_its_calls_were_too_few() -> None:
    assert asked(500) == [(1, 1), (1, 1), (3, 1)]
    assert asked(60) == [(1, 1), (2, 2), (3, 2)]
    assert asked(30) == [(1, 1), (2, 4), (3, 4)]
    assert asked(1500) == [(1, 1), (4, 1)]


def test_what_takes_less_than_a_launch_is_not_significant() -> None:
    found, _ = judged(12, 6)
    assert found.value == pytest.approx(2, rel=0.02)
    assert not found.significant


def test_an_interval_holds_its_estimate_and_narrows() -> None:
    rng = random.Random(3)
    few, many = ([rng.gauss(0.2, 0.02) for _ in range(n)] for n in (6, 60))
    for logs in (few, many):
        low, high = interval(logs)
        assert low <= sorted(logs)[len(logs) // 2] <= high
    assert interval(many)[1] - interval(many)[0] < interval(few)[1] - interval(few)[0]


def test_null_quantile_is_of_absolute_values() -> None:
    assert null_quantile([-0.02, 0.01, 0.0], 1.0) == pytest.approx(0.02)
