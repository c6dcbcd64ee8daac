"""`group_advantages`: worked examples, invariants, and what it refuses."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernrl.errors import UsageError
from kernrl.kernels import group_advantages

KINDS = ("loo", "group", "batch", "mean")


def test_worked_examples():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 3.0, 5.0])
    torch.testing.assert_close(
        group_advantages(rewards, 2, kind="loo"), torch.tensor([1.0, -1.0, -1.0, 1.0, -2.0, 2.0])
    )  # fmt: skip
    torch.testing.assert_close(group_advantages(rewards, 3, kind="mean"), torch.tensor([2 / 3, -1 / 3, -1 / 3, -2.0, 0.0, 2.0]))
    grouped = group_advantages(rewards, 3, kind="group", epsilon=0.0)
    torch.testing.assert_close(grouped[3:], torch.tensor([-1.0, 0.0, 1.0]))
    batch = group_advantages(rewards, 3, kind="batch", epsilon=0.0)
    torch.testing.assert_close(batch, group_advantages(rewards, 3, kind="mean") / rewards.std())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.floats(-1e6, 1e6, width=32), st.sampled_from(KINDS))
def test_equal_rewards_give_exactly_zero(size, value, kind):
    assert (group_advantages(torch.full((size,), value), size, kind=kind) == 0).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=7), min_size=1, max_size=5))
def test_every_kind_sums_to_zero_in_each_group(groups):
    rewards = torch.tensor([reward for group in groups for reward in group])
    bounds = [0]
    for group in groups:
        bounds.append(bounds[-1] + len(group))
    for kind in KINDS:
        advantages = group_advantages(rewards, group_boundaries=bounds, kind=kind)
        for start, end in itertools.pairwise(bounds):
            assert abs(advantages[start:end].double().sum()) < 1e-4 * (1 + advantages.abs().max())


def test_loo_is_the_reward_less_the_mean_of_the_others():
    rewards = torch.rand(8)
    advantages = group_advantages(rewards, 8)
    for i in range(8):
        others = torch.cat([rewards[:i], rewards[i + 1 :]])
        torch.testing.assert_close(advantages[i], rewards[i] - others.mean())


def test_masked_rewards_take_no_part():
    rewards = torch.tensor([1.0, 0.0, float("nan"), 0.0, 2.0, 2.0])
    mask = torch.tensor([1, 1, 0, 1, 1, 0])
    advantages = group_advantages(rewards, 3, mask=mask)
    torch.testing.assert_close(advantages, torch.tensor([1.0, -1.0, 0.0, -2.0, 2.0, 0.0]))
    assert (group_advantages(rewards, 3, mask=torch.zeros(6)) == 0).all()


def test_large_offsets_do_not_hide_small_differences():
    rewards = torch.tensor([67.0, 67.0, 67.0 + 2**-10], dtype=torch.float64)
    advantages = group_advantages(rewards, 3, kind="group", epsilon=0.0)
    torch.testing.assert_close(advantages, torch.tensor([-1.0, -1.0, 2.0]) / 3**0.5)


@pytest.mark.parametrize("bounds", [[1, 4], [0, 3], [0, 5], [0, 2, 2, 4], [0, 3, 1, 4], [], [0]])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_boundaries_are_checked(bounds, as_tensor):
    given_bounds = torch.tensor(bounds, dtype=torch.int64) if as_tensor else bounds
    with pytest.raises(UsageError, match="group_boundaries must start at 0, end at 4"):
        group_advantages(torch.zeros(4), group_boundaries=given_bounds)


def test_wrong_arguments():
    with pytest.raises(UsageError, match="groups of group_size=3"):
        group_advantages(torch.zeros(4), 3)
    with pytest.raises(UsageError, match="either"):
        group_advantages(torch.zeros(4))
    with pytest.raises(UsageError, match="kind"):
        group_advantages(torch.zeros(4), 2, kind="rloo")
