"""Returns, advantages over groups with unknown members, and the order of tasks."""

from collections import Counter

import pytest
import torch

from kernrl.algorithms.curriculum import TaskOrder, curriculum_weight
from kernrl.algorithms.returns import advantages_of_groups, discounted_returns, is_constant, mismatch_kl


def test_a_turn_earns_what_it_made_possible():
    assert discounted_returns([0.0, 0.0, 1.0], 0.5) == [0.25, 0.5, 1.0]
    assert discounted_returns([1.0, 0.0], 0.5) == [1.0, 0.0]
    assert discounted_returns([0.3], 0.4) == [0.3]
    assert discounted_returns([], 0.4) == []


def test_leave_one_out_compares_with_the_others():
    (first, second) = advantages_of_groups([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5]], "loo")
    assert first.tolist() == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    assert second.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["loo", "group", "batch", "mean", "rank"])
def test_unknown_rewards_change_nothing_for_the_others(kind):
    with_unknown = advantages_of_groups([[1.0, None, 0.2, 0.6], [None, None], [0.0, 1.0]], kind)
    without = advantages_of_groups([[1.0, 0.2, 0.6], [0.0, 1.0]], kind)
    assert with_unknown[0][[0, 2, 3]].tolist() == pytest.approx(without[0].tolist())
    assert with_unknown[0][1] == 0
    assert with_unknown[1].tolist() == [0.0, 0.0]
    assert with_unknown[2].tolist() == pytest.approx(without[1].tolist())


def test_every_kind_by_hand():
    def found(kind):
        return [x for group in advantages_of_groups([[0.0, 0.5, 1.0], [0.2, 0.2]], kind) for x in group.tolist()]

    assert found("none") == pytest.approx([0.0, 0.5, 1.0, 0.2, 0.2])
    assert found("mean") == pytest.approx([-0.5, 0.0, 0.5, 0.0, 0.0])
    assert found("loo") == pytest.approx([-0.75, 0.0, 0.75, 0.0, 0.0])
    assert found("group") == pytest.approx([-1.0, 0.0, 1.0, 0.0, 0.0], abs=1e-4)


def test_a_rank_is_what_is_beaten_less_what_beats():
    (group, outlier, close, alone) = advantages_of_groups([[0.0, 0.5, 1.0, 1.0], [0.0, 1.0, 99.0], [1.0, 1.005], [0.7]], "rank")
    assert group.tolist() == pytest.approx([-1.0, -1 / 3, 2 / 3, 2 / 3])
    assert outlier.tolist() == [-1.0, 0.0, 1.0]
    assert close.tolist() == [0.0, 0.0]
    assert alone.tolist() == [0.0]


def test_mismatch_of_equals_is_zero_and_of_others_a_divergence():
    generator = torch.Generator().manual_seed(0)
    sampler, trainer = (torch.randn(5, generator=generator).log_softmax(0) for _ in range(2))
    tokens = torch.multinomial(sampler.exp(), 200_000, replacement=True, generator=generator)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    exact = (sampler.exp() * (sampler - trainer)).sum()
    assert mismatch_kl(trainer[tokens], sampler[tokens], mask) == pytest.approx(float(exact), rel=0.05)
    assert mismatch_kl(sampler[tokens], sampler[tokens], mask) == 0
    # what is masked may hold anything
    wrong = trainer[tokens].clone()
    wrong[::2] = float("nan")
    mask[::2] = False
    assert mismatch_kl(wrong, sampler[tokens], mask) == pytest.approx(float(exact), rel=0.05)


def test_constant_groups():
    assert is_constant([0.5, 0.5, None])
    assert is_constant([None, 0.5])
    assert is_constant([])
    assert not is_constant([0.5, 0.4])


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
