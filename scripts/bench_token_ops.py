"""The part of `bench_loss.py` that times `ppo_loss` and `ratio_kl`."""

import argparse
import functools
from collections.abc import Callable, Iterator

import torch
from loss_timing import copy_gb_per_s, forward_backward, host_and_wall_us, medians_ms

TEMPERATURE, EPSILON = 0.9, 0.2


def ppo_in_pytorch(new, old, rollout, advantages, mask):
    """PPO with dual clip and a truncated token correction, as a trainer writes it; with its clip ratio."""
    ratio = (new - old).exp()
    clipped = torch.maximum(-ratio * advantages, -ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantages)
    each = torch.where(advantages < 0, torch.minimum(clipped, -3.0 * advantages), clipped)
    each = each * (old - rollout).exp().clamp(max=2.0)
    cut = ((ratio > 1 + EPSILON) & (advantages > 0)) | ((ratio < 1 - EPSILON) & (advantages < 0))
    count = mask.sum().clamp(min=1)
    return (each * mask).sum() / count, (cut * mask).sum() / count


def bench_tokens(b: int, t: int) -> Iterator[dict]:
    from kernrl.integrations.skyrl import ppo_policy_loss_fused
    from kernrl.kernels import ppo_loss

    logp, advantages = torch.randn(b, t, device="cuda") - 3, torch.randn(b, t, device="cuda")
    old, rollout = (logp + 0.1 * torch.randn_like(logp) for _ in range(2))
    mask = (torch.rand(b, t, device="cuda") < 0.9).float()
    compiled = torch.compile(ppo_in_pytorch)
    skyrl = argparse.Namespace(
        policy_loss_type="dual_clip", eps_clip_low=EPSILON, eps_clip_high=EPSILON, clip_ratio_c=3.0,
        loss_reduction="token_mean", use_tis=True, tis_imp_ratio_cap=2.0,
    )  # fmt: skip
    options = {"delta": 3.0, "correction": "token_truncate", "rollout_logprobs": rollout}
    losses = {
        "kernrl": lambda x: ppo_loss(x, old, advantages, mask, **options)[0],
        "kernrl, num_tokens given": lambda x: ppo_loss(x, old, advantages, mask, num_tokens=1000.0, **options)[0],
        "torch.compile": lambda x: compiled(x, old, rollout, advantages, mask)[0],
        "eager": lambda x: ppo_in_pytorch(x, old, rollout, advantages, mask)[0],
    }
    waiting = {
        "kernrl as SkyRL's loss": lambda x: ppo_policy_loss_fused(x, old, advantages, skyrl, mask, rollout)[0],
        "torch.compile, waiting for its clip ratio": lambda x: _wait(compiled(x, old, rollout, advantages, mask))[0],
    }
    every = {name: functools.partial(forward_backward, loss, logp) for name, loss in {**losses, **waiting}.items()}
    spans = medians_ms({name: every[name] for name in losses})
    costs = host_and_wall_us(every)
    floor = 6 * 4 * logp.numel() / copy_gb_per_s() / 1e6
    for name, (host, wall) in costs.items():
        ms = spans.get(name)
        yield {
            "name": name, "ms": ms, "x_floor": None if ms is None else ms / floor, "host_us": host, "wall_us": wall,
            "floor": "five tensors read and one written at the speed of a copy",
        }  # fmt: skip


def _wait(loss_and_ratio):
    loss_and_ratio[1].item()
    return loss_and_ratio


def ratio_in_pytorch(policy, ref, ids, old):
    logp, ref_logp = ((x.float() / TEMPERATURE).log_softmax(-1).gather(-1, ids[:, None])[:, 0] for x in (policy, ref))
    d = ref_logp - logp
    return (logp - old).exp(), d.exp() - d - 1


def bench_ratio(n: int, vocab: int) -> Iterator[dict]:
    from kernrl.kernels import ratio_kl

    policy, ref = (torch.randn(n, vocab, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out, ids, old = torch.empty_like(ref), torch.randint(0, vocab, (n,), device="cuda"), torch.randn(n, device="cuda") - 12
    mask, weights = torch.ones(n, dtype=torch.bool, device="cuda"), torch.randn(2, n, device="cuda").unbind()
    compiled = torch.compile(ratio_in_pytorch, dynamic=True)

    def backward(op):
        torch.autograd.backward(op(policy.detach().requires_grad_()), weights)

    runs: dict[str, Callable[[], object]] = {
        "copy": lambda: out.copy_(ref),
        "kernrl": lambda: backward(lambda x: ratio_kl(x, ref, ids, mask, old, TEMPERATURE)),
        "kernrl, forward alone": lambda: ratio_kl(policy, ref, ids, mask, old, TEMPERATURE),
        "torch.compile": lambda: backward(lambda x: compiled(x, ref, ids, old)),
        "eager": lambda: backward(lambda x: ratio_in_pytorch(x, ref, ids, old)),
    }
    times = medians_ms(runs, rounds=5)
    for name in list(runs)[1:]:
        ms, floor = times.get(name), 1.5 * times["copy"]
        yield {
            "name": name, "ms": ms, "x_floor": None if ms is None else ms / floor,
            "floor": "both logits read and one gradient written at the speed of a copy. Upstream's gradient is not known "
            "when the policy's logits are first read, so four transfers of three are the least: 1.33",
        }  # fmt: skip


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.gradient = gradient
        return gradient.new_empty(())

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.gradient, None


def autograd_us() -> float:
    """What forward and backward of a function that does nothing cost the host."""
    x = torch.zeros(1024, device="cuda")
    return host_and_wall_us({"nothing": lambda: forward_backward(lambda y: _Nothing.apply(y, x), x)})["nothing"][0]  # pyright: ignore[reportReturnType, reportArgumentType]
