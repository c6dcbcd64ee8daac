"""From rewards to the weights of the policy gradient: returns over turns, and advantages within groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from kernrl.kernels import group_advantages

Advantage = Literal["loo", "group", "batch", "mean", "rank", "raw"]

TIE = 0.01
"""Rewards no farther apart than this count as equal under `rank`: with `log-speed`, 1 % of the time."""


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """R_t = Σ_{k ≥ t} γ^{k−t} r_k: what a turn earned, and what it made possible (Kevin, arXiv 2507.11948)."""
    returns: list[float] = []
    later = 0.0
    for reward in reversed(rewards):
        later = reward + gamma * later
        returns.append(later)
    return returns[::-1]


def advantages_of_groups(
    rewards_G: Sequence[Sequence[float | None]],
    kind: Advantage,
    correct_G: Sequence[Sequence[bool]] | None = None,
    failure_weight: float = 1.0,
) -> list[Tensor]:
    """Advantages within each group. A member without a reward is left out: the others are compared with each other.

    Args:
        rewards_G: the rewards of each group; None where the candidate could not be judged.
        kind: `loo`: reward less the mean of the others. `group`: standardised in the group. `batch`: centred in the group,
            scaled over the batch. `mean`: centred in the group. `rank`: the share of the others that it beats, less the share
            that beat it. `raw`: the reward itself.
        correct_G: which candidates of each group are correct; by default all are.
        failure_weight: under `rank`, how many times a comparison of a correct candidate with one that is not counts.

    Returns:
        One float32 tensor a group, as long as the group; 0 where there was no reward.
    """
    flat = torch.tensor([r or 0.0 for group in rewards_G for r in group], dtype=torch.float32)
    sizes = [len(group) for group in rewards_G]
    if kind == "raw":
        return list(flat.split(sizes))
    known = torch.tensor([r is not None for group in rewards_G for r in group])
    if kind == "rank":
        correct_G = correct_G or [[True] * size for size in sizes]
        correct = torch.tensor([c for group in correct_G for c in group])
        groups = zip(flat.split(sizes), known.split(sizes), correct.split(sizes), strict=True)
        return [_rank(*group, failure_weight) for group in groups]
    boundaries = [0, *accumulate(sizes)]
    values = group_advantages(flat, group_boundaries=boundaries, kind=kind, mask=known)
    return list(values.split(sizes))


def _rank(rewards: Tensor, known: Tensor, correct: Tensor, failure_weight: float) -> Tensor:
    """(wins − losses) / (known others) of each member against the others: float32 [G], with sum 0.

    So a group whose rewards hardly differ counts as much as any other, and an outlier no more than any winner. Most candidates
    of a trained policy are correct and differ in speed; without `failure_weight` the few that fail would hardly count.
    """
    gaps = rewards[:, None] - rewards
    both = known[:, None] & known
    weight = torch.where(correct[:, None] == correct, 1.0, failure_weight)
    return (both * weight * ((gaps > TIE).float() - (gaps < -TIE).float())).sum(1) / max(1, int(known.sum()) - 1)


def is_constant(rewards: Sequence[float | None]) -> bool:
    """Whether a group holds nothing to compare: fewer than two known rewards, or all the same."""
    known = [r for r in rewards if r is not None]
    return len(known) < 2 or min(known) == max(known)
