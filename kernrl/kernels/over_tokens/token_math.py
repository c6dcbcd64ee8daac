"""The policy loss of one token in Triton, or of a block of tokens: the text of `token_loss.policy_loss_reference` with its
derivatives written out. Kernels over logits call it with scalars, the kernel over tokens with blocks."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false

import triton
import triton.language as tl

from kernrl.kernels.over_tokens.token_loss import LOG_RATIO_LIMIT as _LIMIT

LOG_RATIO_LIMIT = tl.constexpr(_LIMIT)


@triton.jit
def log_ratio(new, old):
    """new - old within +-LOG_RATIO_LIMIT, 0 where both are the same infinity."""
    return tl.minimum(tl.maximum(tl.where(new == old, 0.0, new - old), -LOG_RATIO_LIMIT), LOG_RATIO_LIMIT)


@triton.jit
def load_float(ptr, at, inside):
    """ptr[at] as float32, 0 where ptr is None."""
    value = 0.0
    if ptr is not None:
        value = tl.load(ptr + at, mask=inside, other=0.0).to(tl.float32)
    return value


@triton.jit
def load_token(
    token, inside, advantage_ptr, weight_ptr, count_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage, weight_scale
):  # fmt: skip
    """(advantage, weight, old, ref, correction) of token index `token`, a scalar or a block; 0 for what is not given."""
    advantage = load_float(advantage_ptr, token // tokens_per_advantage, inside)
    weight = weight_scale
    if weight_ptr is not None:
        weight = load_float(weight_ptr, token, inside)
    if count_ptr is not None:
        weight = weight / tl.load(count_ptr).to(tl.float32)
    return (
        advantage, weight, load_float(old_ptr, token, inside), load_float(ref_ptr, token, inside),
        load_float(correction_ptr, token, inside),
    )  # fmt: skip


@triton.jit
def cut_correction(raw, correction_min, correction_max, TRUNCATE: tl.constexpr):
    """(rho, whether it was cut) from the ratio of trainer to rollout engine."""
    cut = raw > correction_max
    rho = tl.minimum(raw, correction_max)
    if not TRUNCATE:
        cut = cut | (raw < correction_min)
        rho = tl.where(cut, 0.0, raw)
    return rho, cut


@triton.jit
def token_loss(
    logp, log_r, entropy, advantage, weight, old, ref, correction,
    clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
    LOSS: tl.constexpr, KL: tl.constexpr, CORRECTION: tl.constexpr, HAS_REF: tl.constexpr,
):  # fmt: skip
    """(loss, gradient of the policy term, gradient of the KL term, ratio, clipped low, high, beyond delta, kl, rho, cut).

    `log_r` is the token's log ratio, or its sequence's; clip_low, clip_high, sapo_pos and sapo_neg are what
    `LossConfig.scalars` makes of them. The gradients are by logp, the policy term's as if log_r were the
    token's own. CORRECTION 3 says that `correction` is rho itself.
    """
    ratio = tl.exp(log_r)
    slope = tl.where(tl.abs(log_r) < LOG_RATIO_LIMIT, ratio, 0.0)  # d ratio / d logp
    low = (ratio < clip_low) & (advantage < 0) & (LOSS == 0)
    high = (ratio > clip_high) & (LOSS <= 1)
    beyond = (ratio > delta) & (advantage < 0) & (LOSS == 0)
    if LOSS == 0:
        high = high & (advantage > 0)
        clipped = tl.minimum(tl.maximum(ratio, clip_low), clip_high)
        policy = -tl.minimum(tl.minimum(ratio, delta) * advantage, clipped * advantage)
        dpolicy = tl.where(low | high | beyond, 0.0, -advantage * slope)
    elif LOSS == 1:
        dpolicy = -tl.minimum(ratio, clip_high) * advantage
        policy = dpolicy * logp
    elif LOSS == 2:
        steepness = tl.where(advantage > 0, sapo_pos, sapo_neg)
        gate = 1 / (1 + tl.exp(-steepness * (ratio - 1)))
        policy = -advantage * 4 / steepness * gate
        dpolicy = -advantage * 4 * gate * (1 - gate) * slope
    elif LOSS == 4:
        power = tl.where(advantage >= 0, sapo_pos, sapo_neg)
        decay = tl.where(advantage >= 0, clip_low, clip_high)
        dpolicy = -advantage * tl.exp(decay + power * log_r - decay * ratio)
        policy = dpolicy * logp
    elif LOSS == 5:
        policy = -advantage * ratio
        dpolicy = -advantage * slope
    else:
        dpolicy = -advantage
        policy = dpolicy * logp
    policy = tl.where(advantage == 0, 0.0, policy)

    rho = ratio * 0 + 1
    cut = ratio < 0
    if CORRECTION == 3:
        rho = rho * correction
        cut = rho == 0
    elif CORRECTION > 0:
        rho, cut = cut_correction(tl.exp(log_ratio(old, correction)), correction_min, correction_max, CORRECTION == 1)
    kl = ratio * 0
    dkl = ratio * 0
    if HAS_REF:
        d = log_ratio(ref, logp)
        inside = tl.abs(d) < LOG_RATIO_LIMIT
        if KL == 1:
            kl = -d
            dkl = tl.where(inside, 1.0, 0.0)
        elif KL == 2:
            kl = 0.5 * d * d
            dkl = tl.where(inside, -d, 0.0)
        else:
            kl = tl.exp(d) - d - 1
            dkl = tl.where(inside, 1 - tl.exp(d), 0.0)
    # Minimum and maximum swallow NaN; a broken row must show.
    broken = logp != logp
    loss = tl.where(broken, logp, weight * (rho * policy + beta * kl - entropy_coef * entropy))
    return (
        loss, tl.where(broken, logp, weight * rho * dpolicy), weight * beta * dkl, ratio, low, high, beyond, kl, rho, cut
    )  # fmt: skip
