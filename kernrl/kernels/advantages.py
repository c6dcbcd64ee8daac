"""Advantages of grouped rollouts from their rewards. A few numbers a step, so plain PyTorch on any device."""

import itertools

import torch
from torch import Tensor

from kernrl.errors import UsageError

KINDS = ("loo", "group", "batch", "mean")


def group_advantages(
    rewards: Tensor,
    group_size: int | None = None,
    group_boundaries: Tensor | list[int] | None = None,
    *,
    kind: str = "loo",
    mask: Tensor | None = None,
    epsilon: float = 1e-6,
) -> Tensor:
    """[B] float32 advantages of `rewards` [B], whose groups (the rollouts of one task) are contiguous.

    With R the reward and mean, std (of a sample: n - 1) over the group's unmasked rewards:

        loo     R - mean of the *others*                     (leave-one-out; unbiased)
        group   (R - mean) / (std + epsilon)                 (GRPO)
        batch   (R - mean) / (std over the batch + epsilon)
        mean    R - mean                                     (Dr. GRPO)

    A group of equal rewards, and so a group of one, gets exactly 0. Sums are taken in float64, variances in two passes.

    Args:
        group_size: rollouts a task, or
        group_boundaries: [groups + 1] where each group starts; the first is 0, the last B, and they rise strictly.
            Boundaries on a GPU are read back to be checked.
        mask: [B], False for rewards that do not exist (broken infrastructure): no part in any mean, advantage 0.

    Raises:
        UsageError: the boundaries or the kind are wrong.
    """
    if kind not in KINDS:
        raise UsageError(f"kind={kind!r} is not one of {', '.join(KINDS)}")
    if rewards.dim() != 1:
        raise UsageError(f"rewards has shape {tuple(rewards.shape)}; it must be [B]")
    sizes = _group_sizes(rewards.numel(), group_size, group_boundaries).to(rewards.device)
    present = torch.ones_like(rewards, dtype=torch.bool) if mask is None else mask.to(torch.bool)
    values = rewards.to(torch.float64).where(present, 0.0)

    def group_sum(x: Tensor) -> Tensor:
        total = torch.segment_reduce(x.to(torch.float64), "sum", lengths=sizes, unsafe=True, initial=0.0)
        return total.repeat_interleave(sizes, output_size=x.numel())

    count = group_sum(present)
    centred = (values - group_sum(values) / count.clamp(min=1)).where(present, 0.0)
    variance = group_sum(centred**2) / (count - 1).clamp(min=1)
    if kind == "loo":
        advantages = centred * count / (count - 1).clamp(min=1)
    elif kind == "group":
        advantages = centred / (variance.sqrt() + epsilon)
    elif kind == "batch":
        n = present.sum()
        spread = (values - values.sum() / n.clamp(min=1)).where(present, 0.0)
        advantages = centred / ((spread**2).sum().div((n - 1).clamp(min=1)).sqrt() + epsilon)
    else:
        advantages = centred
    equal = _group_extreme(values.where(present, -torch.inf), sizes) == -_group_extreme(
        (-values).where(present, -torch.inf), sizes
    )
    return advantages.where(present & ~equal, 0.0).to(torch.float32)


def _group_extreme(values: Tensor, sizes: Tensor) -> Tensor:
    """[B]: the largest value of each one's group."""
    largest = torch.segment_reduce(values, "max", lengths=sizes, unsafe=True)
    return largest.repeat_interleave(sizes, output_size=values.numel())


def _group_sizes(n: int, group_size: int | None, group_boundaries: Tensor | list[int] | None) -> Tensor:
    if (group_size is None) == (group_boundaries is None):
        raise UsageError("give either group_size or group_boundaries")
    if group_boundaries is None:
        assert group_size is not None
        if group_size < 1 or n % group_size:
            raise UsageError(f"{n} rewards do not divide into groups of group_size={group_size}")
        return torch.full((n // group_size,), group_size)
    bounds = group_boundaries.tolist() if isinstance(group_boundaries, Tensor) else list(group_boundaries)
    rising = all(a < b for a, b in itertools.pairwise(bounds))
    if not bounds or bounds[0] != 0 or bounds[-1] != n or not rising:
        raise UsageError(f"group_boundaries must start at 0, end at {n} (the number of rewards) and rise strictly")
    return torch.tensor(bounds).diff()
