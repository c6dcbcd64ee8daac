"""From per-token log-probs and entropies to the loss and its metrics: one launch over [N], no atomics, no host sync."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernrl.kernels.token_loss import METRICS, LossConfig, Tokens, token_loss


@triton.jit
def token_at(
    token, inside, logp, entropy,
    mask_ptr, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage, weight_scale,
    clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
    LOSS: tl.constexpr, KL: tl.constexpr, CORRECTION: tl.constexpr,
):  # fmt: skip
    """`token_loss` of token index `token` (a scalar or a block; read only where `inside`)."""
    advantage = tl.load(advantage_ptr + token // tokens_per_advantage, mask=inside, other=0.0)
    weight = logp * 0 + weight_scale
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + token, mask=inside, other=0.0)
    old = logp
    if old_ptr is not None:
        old = tl.load(old_ptr + token, mask=inside, other=0.0)
    ref = logp
    if ref_ptr is not None:
        ref = tl.load(ref_ptr + token, mask=inside, other=0.0)
    correction = logp
    if correction_ptr is not None:
        correction = tl.load(correction_ptr + token, mask=inside, other=0.0)
    return token_loss(
        logp, entropy, old, ref, correction, advantage, weight,
        clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
        LOSS, KL, CORRECTION, ref_ptr is not None,
    )  # fmt: skip


@triton.jit(do_not_specialize=["n_tokens", "tokens_per_advantage"])
def _reduce_kernel(
    loss_ptr, metrics_ptr, g_ptr, logp_ptr, entropy_ptr, n_tokens,
    mask_ptr, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage, weight_scale,
    clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
    LOSS: tl.constexpr, KL: tl.constexpr, CORRECTION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program walks all tokens in order, so the sums are the same from run to run."""
    zero = tl.zeros([BLOCK], tl.float32)
    loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum = zero, zero, zero, zero, zero, zero
    kl_old_sum, kl_sum, entropy_sum, rho_sum, cut_sum = zero, zero, zero, zero, zero
    omega_sum, omega_square_sum, ratio_max = zero, zero, zero
    for start in range(0, n_tokens, BLOCK):
        token = start + tl.arange(0, BLOCK)
        active = token < n_tokens
        if mask_ptr is not None:
            active = active & (tl.load(mask_ptr + token, mask=active, other=0) != 0)
        logp = tl.load(logp_ptr + token, mask=active, other=0.0)
        entropy = tl.load(entropy_ptr + token, mask=active, other=0.0)
        loss, g, _h, ratio, log_r, low, high, beyond, kl, rho, cut = token_at(
            token, active, logp, entropy,
            mask_ptr, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage, weight_scale,
            clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
            LOSS, KL, CORRECTION,
        )  # fmt: skip
        if g_ptr is not None:
            tl.store(g_ptr + token, tl.where(active, g, 0.0), mask=token < n_tokens)
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
        entropy_sum += entropy
        rho_sum += tl.where(active, rho, 0.0)
        cut_sum += tl.where(active & cut, 1.0, 0.0)
        omega_sum += omega
        omega_square_sum += omega * omega
    n_active = tl.sum(count)
    per = 1 / tl.maximum(n_active, 1.0)
    tl.store(loss_ptr, tl.sum(loss_sum))
    tl.store(metrics_ptr, n_active)
    tl.store(metrics_ptr + 1, tl.sum(ratio_sum) * per)
    tl.store(metrics_ptr + 2, tl.max(ratio_max))
    tl.store(metrics_ptr + 3, tl.sum(low_sum) * per)
    tl.store(metrics_ptr + 4, tl.sum(high_sum) * per)
    tl.store(metrics_ptr + 5, tl.sum(beyond_sum) * per)
    tl.store(metrics_ptr + 6, tl.sum(kl_old_sum) * per)
    tl.store(metrics_ptr + 7, tl.sum(kl_sum) * per)
    tl.store(metrics_ptr + 8, tl.sum(entropy_sum) * per)
    tl.store(metrics_ptr + 9, tl.sum(rho_sum) * per)
    tl.store(metrics_ptr + 10, tl.sum(cut_sum) * per)
    total = tl.sum(omega_sum)
    tl.store(metrics_ptr + 11, total * total * per / tl.maximum(tl.sum(omega_square_sum), 1e-30))


def reduce_tokens(
    logprobs: Tensor, entropy: Tensor, tokens: Tokens, config: LossConfig, g: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(loss [], metrics [len(METRICS)]) float32 on the GPU. `g` [N], where given, receives dloss/dlogp."""
    loss = torch.empty((), dtype=torch.float32, device=logprobs.device)
    metrics = torch.empty(len(METRICS), dtype=torch.float32, device=logprobs.device)
    _reduce_kernel[(1,)](
        loss, metrics, g, logprobs, entropy, tokens.ids.numel(), **tokens.kernel_args(config), BLOCK=2048, num_warps=16
    )  # fmt: skip
    return loss, metrics
