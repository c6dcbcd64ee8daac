"""`ppo_loss` on a GPU, for every number of tiles a program can have."""

import pytest
import torch

from kernrl.kernels import ppo_loss
from kernrl.kernels.over_tokens import tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


def draw(n: int, seed: int):
    generator = torch.Generator("cuda").manual_seed(seed)
    logp, advantages, noise = torch.randn(3, n, device="cuda", generator=generator).unbind()
    mask = torch.rand(n, device="cuda", generator=generator) < 0.7
    return (logp - 3).contiguous(), (logp - 3 + 0.2 * noise).contiguous(), advantages.contiguous(), mask


def exact(logp, old, advantages, mask):
    """PPO in float64: (loss, gradient)."""
    leaf = logp.double().requires_grad_()
    ratio, a = (leaf - old.double()).exp(), advantages.double()
    loss = (torch.maximum(-ratio * a, -ratio.clamp(0.8, 1.2) * a) * mask).sum() / mask.sum().clamp(min=1)
    loss.backward()
    return loss.detach(), leaf.grad


def run(logp, old, advantages, mask, **options):
    leaf = logp.clone().requires_grad_()
    loss, metrics = ppo_loss(leaf, old, advantages, mask, **options)
    loss.backward()
    return loss.detach(), leaf.grad, metrics


def close(got, want):
    return (got.double() - want).norm() <= 1e-5 * want.norm()


# One tile a program, two, three, four, and more than wait in registers; a tile or a program not full.
@pytest.mark.parametrize("n", [1, 5, 65_536, 131_073, 300_001, 700_000, 1_048_576, 1_048_577, 3_000_000])
def test_every_number_of_tiles(n):
    for seed in range(2):
        logp, old, advantages, mask = draw(n, seed)
        logp[~mask] = float("nan")
        want, gradient = exact(logp.where(mask, 0.0), old, advantages, mask)
        for dtype in (torch.bool, torch.float32):
            loss, got, metrics = run(logp, old, advantages, mask.to(dtype))
            assert abs(loss - want) <= 1e-5 * max(1, abs(want))
            assert got[mask].isfinite().all()
            assert (got[~mask] == 0).all()
            assert n < 10 or close(got, gradient)
            assert metrics["tokens"] == mask.sum()
        again = run(logp, old, advantages, mask)
        first = run(logp, old, advantages, mask)
        assert torch.equal(again[0], first[0])
        assert torch.equal(again[1], first[1])


def test_no_token_counts():
    logp, old, advantages, mask = draw(70_000, 0)
    loss, gradient, metrics = run(logp, old, advantages, torch.zeros_like(mask))
    assert loss == 0
    assert (gradient == 0).all()
    assert metrics["tokens"] == 0


def test_a_kept_launch_takes_what_each_call_gives():
    """Calls of one shape share what was made of their options, never a tensor or a number of another call."""
    tokens._plans.clear()
    cases = [draw(5000, seed) for seed in range(3)]
    for _ in range(2):
        for logp, old, advantages, mask in cases:
            want, gradient = exact(logp, old, advantages, mask)
            loss, got, _ = run(logp, old, advantages, mask)
            assert abs(loss - want) < 1e-5
            assert close(got, gradient)
            for count in (100.0, 200.0, torch.tensor(300.0, device="cuda"), torch.tensor(400.0, device="cuda")):
                scaled, _, _ = run(logp, old, advantages, mask, num_tokens=count)
                assert abs(scaled - want * mask.sum() / count) < 1e-4
            wider, _, _ = run(logp, old, advantages, mask, epsilon_low=0.5, epsilon_high=0.5)
            assert wider != loss
            odd = torch.cat([logp.new_zeros(1), logp])[1:]  # no multiple of 16 bytes
            assert torch.equal(run(odd, old, advantages, mask)[1], got)
            spread = torch.stack([advantages, advantages], 1)[:, 0]  # not contiguous
            assert torch.equal(run(logp, old, spread, mask)[1], got)
