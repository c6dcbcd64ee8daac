"""From rewards to what a sampled token is pushed by: returns over turns, and advantages over groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from kernrl.kernels import group_advantages

Advantage = Literal["loo", "group", "batch", "none"]


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """R_t = Σ_{k ≥ t} γ^{k−t} r_k: what a turn earned, and what it made possible (Kevin, arXiv 2507.11948)."""
    returns: list[float] = []
    later = 0.0
    for reward in reversed(rewards):
        later = reward + gamma * later
        returns.append(later)
    return returns[::-1]


def advantages_of_groups(rewards_G: Sequence[Sequence[float | None]], kind: Advantage) -> list[Tensor]:
    """Advantages within each group. A member without a reward takes no part: the others are compared among themselves.

    Args:
        rewards_G: the rewards of each group; None where nothing is known of that member.
        kind: `loo`: reward less the mean of the others. `group`: standardised in the group. `batch`: standardised over the
            whole batch. `none`: the reward itself.

    Returns:
        One float32 tensor a group, as long as the group, with NaN where there was no reward.
    """
    known = [[r for r in group if r is not None] for group in rewards_G]
    flat = torch.tensor([r for group in known for r in group], dtype=torch.float32)
    out = [torch.full((len(group),), float("nan")) for group in rewards_G]
    if not len(flat):
        return out
    sizes = [len(group) for group in known if group]
    boundaries = torch.tensor([0, *sizes]).cumsum(0).to(torch.int32)
    values = iter(group_advantages(flat, group_boundaries=boundaries, kind=kind).tolist())
    for tensor, group in zip(out, rewards_G, strict=True):
        for member, r in enumerate(group):
            if r is not None:
                tensor[member] = next(values)
    return out


def is_constant(rewards: Sequence[float | None]) -> bool:
    """Whether a group tells nothing: fewer than two known rewards, or all the same."""
    known = [r for r in rewards if r is not None]
    return len(known) < 2 or min(known) == max(known)
