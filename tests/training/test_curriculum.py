"""The order of tasks, with and without a curriculum."""

from collections import Counter

import pytest

from kernrl.training.curriculum import TaskOrder, curriculum_weight


def test_every_task_comes_once_an_epoch_and_any_point_can_be_reached():
    order = TaskOrder(5, seed=3)
    drawn = [n for _ in range(5) for n in order.draw(3)]
    assert Counter(drawn) == dict.fromkeys(range(5), 3)
    assert sorted(drawn[:5]) == sorted(drawn[5:10]) == list(range(5))
    assert drawn[:5] != drawn[5:10]
    late = TaskOrder(5, seed=3, drawn=6)
    assert late.draw(9) == drawn[6:]
    assert TaskOrder(5, seed=4).draw(15) != drawn


def test_the_curriculum_prefers_what_succeeds_half_of_the_time():
    assert curriculum_weight(0.5) == 1.0
    assert curriculum_weight(0.0) == curriculum_weight(1.0) == pytest.approx(0.1)
    order = TaskOrder(30, seed=0, curriculum=True)
    order.record({n: 0.0 if n < 10 else 0.5 if n < 20 else 1.0 for n in range(30)})
    drawn = Counter(n // 10 for _ in range(200) for n in order.draw(5))
    assert drawn[1] > 3 * drawn[0]
    assert drawn[1] > 3 * drawn[2]
    assert min(drawn.values()) > 0
    assert all(len(set(order.draw(8))) == 8 for _ in range(20))


def test_pass_rates_follow_the_policy():
    order = TaskOrder(2, seed=0, curriculum=True)
    order.record({0: 0.0})
    order.record({0: 1.0})
    assert order.pass_rates == {0: 0.5}
