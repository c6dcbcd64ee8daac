"""Rewards of the same verdicts: which order candidates alike, and what a step along them gains."""

from __future__ import annotations

import math

import pytest
from compare_rewards import REWARDS, compared, order, rewarded, step_gains
from support.tiny import verdict_of

from kernrl.verifier.base.verdict import Status, Verdict


def group(*speeds: tuple[float, float]) -> list[Verdict]:
    """Correct candidates by their speeds against eager and compile, and a wrong one."""
    right = [verdict_of(f"x{i}", speedup_x=eager, compile_x=compiled) for i, (eager, compiled) in enumerate(speeds)]
    return [*right, verdict_of("y", Status.WRONG)]


GROUPS = [("a", group((2.0, 1.0), (3.0, 1.5), (4.0, 2.0))), ("b", group((1.5, 0.75), (1.5, 0.75)))]


def test_rewards_by_speed_order_alike_where_all_is_significant() -> None:
    eager, compiled, *_ = compared(GROUPS, "rank", 1.0)
    assert compiled["correlation"] == pytest.approx(1.0)
    assert compiled["ordered_differently"] == 0.0
    assert compiled["log_speed"] == pytest.approx(eager["log_speed"]) == 1.0


def test_milestones_see_no_difference_between_two_that_reached_the_same() -> None:
    (row,) = [row for row in compared(GROUPS, "rank", 1.0) if row["reward"] == "milestones"]
    # 3 × and 4 × against eager have both beaten both baselines: one pair of nine
    assert row["ordered_differently"] == pytest.approx(1 / 9)
    assert row["log_speed"] < 1.0


def test_the_best_known_is_that_of_the_models_before() -> None:
    later = [*GROUPS, ("c", group((3.0, 1.5), (4.0, 2.0), (8.0, 4.0)))]
    found = rewarded(later, REWARDS["log-speed against the best known"], "rank", 1.0).rewards
    first = rewarded(GROUPS, REWARDS["log-speed against the best known"], "rank", 1.0).rewards
    assert found[:2] == first
    # 4 × eager was known by then: as fast as that is 1, and twice as fast is rewarded
    assert found[2][1] == pytest.approx(1.0)
    assert found[2][2] == pytest.approx(1.0 + math.log(2.0))


def test_a_step_gains_the_speed_of_what_its_advantages_prefer() -> None:
    up = rewarded(GROUPS, REWARDS["log-speed against eager"], "mean", 1.0).advantages
    speed, correct = step_gains(GROUPS, up)
    assert speed > 0 < correct
    down = step_gains(GROUPS, [-a for a in up])
    assert down == pytest.approx((-speed, -correct))


@pytest.mark.parametrize(("a", "b", "expected"), [(1.0, 1.005, 0), (1.02, 1.0, 1), (None, 0.5, -1)])
def test_rewards_a_hundredth_apart_are_a_tie(a: float | None, b: float | None, expected: int) -> None:
    assert order(a, b) == expected
