"""From per-token log-probs and entropies to the loss and its metrics: [N] to at most PROGRAMS partial sums, and those to
one. Sums are taken in a fixed order, without atomics, so they are the same from run to run; nothing waits for the GPU."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernrl.kernels.token_loss import METRICS, LossConfig, Tokens, token_loss

PROGRAMS = 256
SUMS = tl.constexpr(14)  # what `_combine` adds up


@triton.jit
def load_token(
    token, inside, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage, weight_scale
):  # fmt: skip
    """(advantage, weight, old, ref, correction) of token index `token`, a scalar or a block; 0 for what is not given."""
    advantage = tl.load(advantage_ptr + token // tokens_per_advantage, mask=inside, other=0.0)
    absent = advantage * 0
    weight = absent + weight_scale
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + token, mask=inside, other=0.0)
    old = absent
    if old_ptr is not None:
        old = tl.load(old_ptr + token, mask=inside, other=0.0)
    ref = absent
    if ref_ptr is not None:
        ref = tl.load(ref_ptr + token, mask=inside, other=0.0)
    correction = absent
    if correction_ptr is not None:
        correction = tl.load(correction_ptr + token, mask=inside, other=0.0)
    return advantage, weight, old, ref, correction


@triton.jit
def _combine(
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13
):  # fmt: skip
    """Thirteen sums and a maximum in one tree, whose barriers are what a reduction costs."""
    return (
        a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5, a6 + b6, a7 + b7, a8 + b8, a9 + b9, a10 + b10, a11 + b11,
        a12 + b12, tl.maximum(a13, b13),
    )  # fmt: skip


@triton.jit(do_not_specialize=["n_tokens", "tokens_per_advantage"])
def _partial_kernel(
    partial_ptr, g_ptr, logp_ptr, entropy_ptr, n_tokens,
    mask_ptr, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage, weight_scale,
    clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
    LOSS: tl.constexpr, KL: tl.constexpr, CORRECTION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program strides over the tokens and writes its SUMS to a column of partial [SUMS, programs]."""
    zero = tl.zeros([BLOCK], tl.float32)
    loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum = zero, zero, zero, zero, zero, zero
    kl_old_sum, kl_sum, entropy_sum, rho_sum, cut_sum = zero, zero, zero, zero, zero
    omega_sum, omega_square_sum, ratio_max = zero, zero, zero
    for start in range(tl.program_id(0) * BLOCK, n_tokens, tl.num_programs(0) * BLOCK):
        token = start + tl.arange(0, BLOCK)
        # Masked tokens are read too, so that no load waits for the mask's; `where` keeps them out.
        inside = token < n_tokens
        active = inside
        if mask_ptr is not None:
            active = inside & (tl.load(mask_ptr + token, mask=inside, other=0) != 0)
        logp = tl.load(logp_ptr + token, mask=inside, other=0.0)
        entropy = tl.load(entropy_ptr + token, mask=inside, other=0.0)
        advantage, weight, old, ref, correction = load_token(
            token, inside, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage, weight_scale
        )  # fmt: skip
        loss, g, _h, ratio, log_r, low, high, beyond, kl, rho, cut = token_loss(
            logp, entropy, advantage, weight, old, ref, correction,
            clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
            LOSS, KL, CORRECTION, old_ptr is not None, ref_ptr is not None,
        )  # fmt: skip
        if g_ptr is not None:
            tl.store(g_ptr + token, tl.where(active, g, 0.0), mask=inside)
        omega = tl.where(active, ratio * rho, 0.0)
        loss_sum += tl.where(active, loss, 0.0)
        count += tl.where(active, 1.0, 0.0)
        ratio_sum += tl.where(active, ratio, 0.0)
        ratio_max = tl.maximum(ratio_max, tl.where(active, ratio, 0.0))
        low_sum += tl.where(active & low, 1.0, 0.0)
        high_sum += tl.where(active & high, 1.0, 0.0)
        beyond_sum += tl.where(active & beyond, 1.0, 0.0)
        kl_old_sum += tl.where(active, ratio - 1 - log_r, 0.0)
        kl_sum += tl.where(active, kl, 0.0)
        entropy_sum += tl.where(active, entropy, 0.0)
        rho_sum += tl.where(active, rho, 0.0)
        cut_sum += tl.where(active & cut, 1.0, 0.0)
        omega_sum += omega
        omega_square_sum += omega * omega
    sums = tl.reduce(
        (
            loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum, kl_old_sum, kl_sum, entropy_sum, rho_sum, cut_sum,
            omega_sum, omega_square_sum, ratio_max,
        ),
        0,
        _combine,
    )  # fmt: skip
    for i in tl.static_range(SUMS):
        tl.store(partial_ptr + i * tl.num_programs(0) + tl.program_id(0), sums[i])


@triton.jit(do_not_specialize=["programs"])
def _total_kernel(loss_ptr, metrics_ptr, partial_ptr, programs, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    parts = ()
    for i in tl.static_range(SUMS):
        parts = parts + (tl.load(partial_ptr + i * programs + at, mask=at < programs, other=0.0),)  # noqa: RUF005
    loss, count, ratio, low, high, beyond, kl_old, kl, entropy, rho, cut, omega, omega_square, ratio_max = tl.reduce(
        parts, 0, _combine
    )  # fmt: skip
    per = 1 / tl.maximum(count, 1.0)
    tl.store(loss_ptr, loss)
    tl.store(metrics_ptr, count)
    tl.store(metrics_ptr + 1, ratio * per)
    tl.store(metrics_ptr + 2, ratio_max)
    tl.store(metrics_ptr + 3, low * per)
    tl.store(metrics_ptr + 4, high * per)
    tl.store(metrics_ptr + 5, beyond * per)
    tl.store(metrics_ptr + 6, kl_old * per)
    tl.store(metrics_ptr + 7, kl * per)
    tl.store(metrics_ptr + 8, entropy * per)
    tl.store(metrics_ptr + 9, rho * per)
    tl.store(metrics_ptr + 10, cut * per)
    tl.store(metrics_ptr + 11, omega * omega * per / tl.maximum(omega_square, 1e-30))


def reduce_tokens(
    logprobs: Tensor, entropy: Tensor, tokens: Tokens, config: LossConfig, g: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(loss [], metrics [len(METRICS)]) float32 on the GPU. `g` [N], where given, receives dloss/dlogp."""
    n = tokens.ids.numel()
    loss = torch.empty((), dtype=torch.float32, device=logprobs.device)
    metrics = torch.empty(len(METRICS), dtype=torch.float32, device=logprobs.device)
    programs = max(1, min(PROGRAMS, triton.cdiv(n, 256)))
    partial = torch.empty(SUMS.value, programs, dtype=torch.float32, device=logprobs.device)
    _partial_kernel[(programs,)](partial, g, logprobs, entropy, n, **tokens.kernel_args(config), BLOCK=256, num_warps=4)
    _total_kernel[(1,)](loss, metrics, partial, programs, BLOCK=PROGRAMS, num_warps=4)
    return loss, metrics
