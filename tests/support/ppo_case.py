"""A small case of PPO's loss, and what its plain form gives."""

from types import SimpleNamespace

import torch


def ppo_case() -> SimpleNamespace:
    """Log-probs now, before and of the sampler, advantages and a ragged mask; float64 [3, 6]."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    new = draw(3, 6) - 2
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 2 + [0] * 4], dtype=torch.float64)
    return SimpleNamespace(new=new, old=new + 0.3 * draw(3, 6), rollout=new + 0.3 * draw(3, 6), a=draw(3, 6), mask=mask)


def clipped(case, low=0.2, high=0.2):
    ratio = (case.new - case.old).exp()
    return -torch.minimum(ratio * case.a, ratio.clamp(1 - low, 1 + high) * case.a)


def mean(case, each):
    return (each * case.mask).sum() / case.mask.sum()
