"""The statistics of timing, on made-up clocks. No test here looks at a real one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from kernrl.verifier.replay.stopwatch import Stopwatch, Timed
from kernrl.verifier.replay.timing import Block, NoiseBand, far_slower, interval, null_quantile, sample_blocks, speedup

BAND = NoiseBand(((10.0, 0.03), (1000.0, 0.005)))


def clock(baseline_us: float, candidate_us: float, noise: float, seed: int):
    rng = random.Random(seed)

    def blocks(count: int, calls: int) -> list[Block]:
        return [(baseline_us * rng.gauss(1, noise), candidate_us * rng.gauss(1, noise)) for _ in range(count)]

    return blocks


def judged(baseline_us: float, candidate_us: float, noise: float = 0.001, seed: int = 0, band: NoiseBand = BAND):
    measured = clock(baseline_us, candidate_us, noise, seed)
    blocks = sample_blocks(measured, band, measured(1, 1)[0])
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


def test_far_slower_is_seen_in_one_look_whose_interval_is_wide() -> None:
    assert far_slower([30, 31], [95, 96])
    assert not far_slower([30, 31], [85, 500]), "one call was far too long"
    assert not far_slower([30, 31], [10, 9])
    for us in (30.0, 300.0, 3000.0):
        found = speedup([(us, 3.5 * us)], BAND)
        assert found.significant
        assert found.high / found.low > 1.2
    assert speedup([(3000.0, 1500.0)], BAND).high < 2.2, "others' are as wide as their noise"


def test_a_disturbance_of_a_few_blocks_does_not_decide() -> None:
    told = iter([(295.0, 69.0), (392.0, 69.0), (294.0, 69.0), (391.0, 69.0), (393.0, 69.0)])

    def blocks(count: int, calls: int) -> list[Block]:
        return [next(told, (295.0, 69.0)) for _ in range(count)]

    found = sample_blocks(blocks, BAND, (295.0, 69.0))
    assert len(found) > 10
    assert speedup(found, BAND).value == pytest.approx(295 / 69)


class Clock(Stopwatch):
    """Programs that take as long as they say."""

    def __init__(self) -> None:
        self.calls = 0

    def time(self, order: Sequence[Timed]) -> list[float]:
        self.calls += len(order)
        return [float(program.run()) for program in order]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("candidate_us", "calls", "blocks"), [(1000, 4, 1), (600, 8, 2), (60, 20, 2), (40, 36, 2), (300, 20, 5)]
)
def test_no_more_calls_are_made_than_it_takes(candidate_us: int, calls: int, blocks: int) -> None:
    clock, programs = Clock(), [Timed(lambda: None, lambda us=us: us) for us in (300, candidate_us)]  # pyright: ignore
    found = clock.compare(programs[0], programs[1], BAND)
    assert (clock.calls, len(found)) == (calls, blocks)
    assert set(found) == {(300.0, candidate_us)}


def asked(us: float) -> list[tuple[int, int]]:
    """How many blocks are asked for, and of how many calls, where two programs are alike."""
    found: list[tuple[int, int]] = []

    def blocks(count: int, calls: int) -> list[Block]:
        found.append((count, calls))
        return [(us, us)] * count

    sample_blocks(blocks, BAND, (us, us))
    return found


def test_the_first_block_warms_and_counts_unless_its_calls_were_too_few() -> None:
    assert asked(500) == [(1, 1), (3, 1)]
    assert asked(60) == [(2, 2), (3, 2)]
    assert asked(30) == [(2, 4), (3, 4)]
    assert asked(1500) == [(2, 1)]


def test_of_long_programs_three_blocks_decide_what_they_agree_on() -> None:
    for other, blocks, significant in ((1510, 3, False), (1600, 3, True), (1522, 5, True)):
        found, count = judged(1500, other, noise=0.0003)
        assert (count, found.significant) == (blocks, significant), other


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
