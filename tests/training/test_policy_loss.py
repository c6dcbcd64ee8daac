"""What the policy loss tells of a row."""

import pytest
import torch

from kernrl.training.policy_loss import mismatch_kl


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
