"""Returns over turns, and advantages in groups with unknown members."""

import pytest

from kernrl.training.returns import advantages_of_groups, discounted_returns, is_constant


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

    assert found("raw") == pytest.approx([0.0, 0.5, 1.0, 0.2, 0.2])
    assert found("mean") == pytest.approx([-0.5, 0.0, 0.5, 0.0, 0.0])
    assert found("loo") == pytest.approx([-0.75, 0.0, 0.75, 0.0, 0.0])
    assert found("group") == pytest.approx([-1.0, 0.0, 1.0, 0.0, 0.0], abs=1e-4)


def test_a_rank_is_what_is_beaten_less_what_beats():
    (group, outlier, close, alone) = advantages_of_groups([[0.0, 0.5, 1.0, 1.0], [0.0, 1.0, 99.0], [1.0, 1.005], [0.7]], "rank")
    assert group.tolist() == pytest.approx([-1.0, -1 / 3, 2 / 3, 2 / 3])
    assert outlier.tolist() == [-1.0, 0.0, 1.0]
    assert close.tolist() == [0.0, 0.0]
    assert alone.tolist() == [0.0]


def test_a_failure_counts_as_often_as_is_asked_under_rank():
    rewards, correct = [[0.0, 1.0, 1.5, 2.0]], [[False, True, True, True]]
    (plain,) = advantages_of_groups(rewards, "rank", correct)
    (heavy,) = advantages_of_groups(rewards, "rank", correct, failure_weight=4.0)
    assert plain.tolist() == pytest.approx([-1.0, -1 / 3, 1 / 3, 1.0])
    assert heavy.tolist() == pytest.approx([-4.0, 2 / 3, 4 / 3, 2.0])
    assert heavy.sum().item() == pytest.approx(0.0, abs=1e-6)
    (all_right,) = advantages_of_groups(rewards, "rank", [[True] * 4], failure_weight=4.0)
    assert all_right.tolist() == pytest.approx(plain.tolist())


def test_constant_groups():
    assert is_constant([0.5, 0.5, None])
    assert is_constant([None, 0.5])
    assert is_constant([])
    assert not is_constant([0.5, 0.4])
