"""From rewards to what a sampled token is pushed by: returns over turns, and advantages over groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from kernrl.kernels import group_advantages

Advantage = Literal["loo", "group", "batch", "mean", "rank", "none"]

TIE = 0.01
"""Rewards no farther apart than this are equal to `rank`: with `log-speed`, a hundredth of the time."""


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
        kind: `loo`: reward less the mean of the others. `group`: standardised in the group. `batch`: centred in the group,
            scaled over the batch. `mean`: centred in the group. `rank`: the share of the others that it beats, less the share
            that beat it. `none`: the reward itself.

    Returns:
        One float32 tensor a group, as long as the group; 0 where there was no reward.
    """
    flat = torch.tensor([r or 0.0 for group in rewards_G for r in group], dtype=torch.float32)
    sizes = [len(group) for group in rewards_G]
    if kind == "none":
        return list(flat.split(sizes))
    known = torch.tensor([r is not None for group in rewards_G for r in group])
    if kind == "rank":
        return [_rank(*group) for group in zip(flat.split(sizes), known.split(sizes), strict=True)]
    boundaries = [0, *accumulate(sizes)]
    # what this op calls none still takes off the mean
    values = group_advantages(flat, group_boundaries=boundaries, kind="none" if kind == "mean" else kind, mask=known)
    return list(values.split(sizes))


def _rank(rewards: Tensor, known: Tensor) -> Tensor:
    """Wins less losses against the others of a group, over how many they are: float32 [G], from -1 to 1, with the sum 0.

    A group whose rewards hardly differ then counts as much as any other, and one that is far off rules none.
    """
    gaps = rewards[:, None] - rewards
    both = known[:, None] & known
    return (both * ((gaps > TIE).float() - (gaps < -TIE).float())).sum(1) / max(1, int(known.sum()) - 1)


def is_constant(rewards: Sequence[float | None]) -> bool:
    """Whether a group tells nothing: fewer than two known rewards, or all the same."""
    known = [r for r in rewards if r is not None]
    return len(known) < 2 or min(known) == max(known)


def mismatch_kl(trainer: Tensor, sampler: Tensor, mask: Tensor) -> Tensor:
    """How far the trainer is from the sampler that wrote the tokens: E[r − 1 − log r] with r their probability ratio.

    Schulman's k3 estimate of KL(sampler ‖ trainer), in nats a token: 0 where both are the same, never below.

    Args:
        trainer, sampler: log-probs of the sampled tokens, float32 [N].
        mask: bool [N], which positions count.
    """
    log_ratio = (trainer - sampler)[mask]
    return (torch.expm1(log_ratio) - log_ratio).mean()
