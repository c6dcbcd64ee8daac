"""The policy loss over tokens whose log-probs exist, in one launch: loss, metrics and, where wanted, the gradient.

Programs share out the tokens, or the sequences where anything is asked of them, and write partial sums; the last to finish
adds those up. Every sum is taken in a fixed order, so results are the same from run to run: atomics only count programs, and
the counters are back at 0 when the launch ends. Nothing waits for the GPU.
"""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernrl.kernels.launch import launch, multiprocessors, scratch
from kernrl.kernels.token_loss import METRICS, LossConfig
from kernrl.kernels.token_math import LOG_RATIO_LIMIT, cut_correction, load_float, load_token, log_ratio, token_loss
from kernrl.kernels.tokens import Batch

SUMS = tl.constexpr(14)  # what `_combine` adds up
PER_SM = 4  # programs
MOST_PROGRAMS = 1024
BLOCK, WARPS = 1024, 8


@triton.jit
def _combine(
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13
):  # fmt: skip
    """Thirteen sums and a maximum in one tree, whose barriers are what a reduction costs."""
    return (
        a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5, a6 + b6, a7 + b7, a8 + b8, a9 + b9, a10 + b10, a11 + b11,
        a12 + b12, tl.maximum(a13, b13),
    )  # fmt: skip


@triton.jit
def _add_triples(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def load_active(mask_ptr, at, inside):
    """Which tokens count. Masked ones are read all the same, so that no load waits for the mask's; `where` keeps them out."""
    if mask_ptr is None:
        return inside
    else:
        return inside & (tl.load(mask_ptr + at, mask=inside, other=0) != 0)


@triton.jit
def tile_of(start, BLOCK: tl.constexpr):
    """[BLOCK / 4, 4] indices from `start`: four neighbours to a thread, which one load brings."""
    return start + tl.arange(0, BLOCK // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]


@triton.jit
def unit_bounds(unit, starts_ptr, tokens_per_unit, n_tokens):
    """Where unit's tokens start and end: a sequence's, or a block's."""
    if starts_ptr is None:
        first = unit * tokens_per_unit
        return first, tl.minimum(first + tokens_per_unit, n_tokens)
    else:
        return tl.load(starts_ptr + unit).to(tl.int32), tl.load(starts_ptr + unit + 1).to(tl.int32)


@triton.jit
def _count_all(mask_ptr, counts_ptr, arrived_ptr, n_tokens, BLOCK: tl.constexpr, MOST_PROGRAMS: tl.constexpr):
    """How many tokens count, for every program: each counts a part and waits for the others."""
    counts = tl.zeros([BLOCK // 4], tl.float32)
    for start in range(tl.program_id(0) * BLOCK, n_tokens, tl.num_programs(0) * BLOCK):
        at = tile_of(start, BLOCK)
        counts += tl.sum(tl.where(load_active(mask_ptr, at, at < n_tokens), 1.0, 0.0), 1)
    tl.store(counts_ptr + tl.program_id(0), tl.sum(counts))
    tl.debug_barrier()
    tl.atomic_add(arrived_ptr, 1, sem="release")
    while tl.atomic_add(arrived_ptr, 0, sem="acquire") < tl.num_programs(0):
        pass
    tl.debug_barrier()
    every = tl.arange(0, MOST_PROGRAMS)
    parts = tl.load(counts_ptr + every, mask=every < tl.num_programs(0), other=0.0, cache_modifier=".cg")
    return tl.maximum(tl.sum(parts), 1.0)


@triton.jit
def sequence_sums(mask_ptr, logp_ptr, old_ptr, rollout_ptr, first, last, BLOCK: tl.constexpr):
    """Over one sequence's active tokens: how many, and the sums of logp - old and old - rollout (0 for what is not given)."""
    zero = tl.zeros([BLOCK // 4], tl.float32)
    counts, ratios, gaps = zero, zero, zero
    for start in range(first, last, BLOCK):
        at = tile_of(start, BLOCK)
        active = load_active(mask_ptr, at, at < last)
        counts += tl.sum(tl.where(active, 1.0, 0.0), 1)
        if logp_ptr is not None:
            logp = load_float(logp_ptr, at, at < last)
            old = logp
            if old_ptr is not None:
                old = load_float(old_ptr, at, at < last)
            ratios += tl.sum(tl.where(active, log_ratio(logp, old), 0.0), 1)
        else:
            old = load_float(old_ptr, at, at < last)
        if rollout_ptr is not None:
            gaps += tl.sum(tl.where(active, log_ratio(old, load_float(rollout_ptr, at, at < last)), 0.0), 1)
    return tl.reduce((counts, ratios, gaps), 0, _add_triples)


@triton.jit
def sequence_rho(gap, correction_min, correction_max, TRUNCATE: tl.constexpr):
    """(rho, whether it was cut) of a whole sequence."""
    total = tl.minimum(tl.maximum(gap, -LOG_RATIO_LIMIT), LOG_RATIO_LIMIT)
    return cut_correction(tl.exp(total), correction_min, correction_max, TRUNCATE)


@triton.jit
def _total(loss_ptr, metrics_ptr, partial_ptr, programs, MOST_PROGRAMS: tl.constexpr):
    at = tl.arange(0, MOST_PROGRAMS)
    parts = ()
    for i in tl.static_range(SUMS):
        part = tl.load(partial_ptr + i * programs + at, mask=at < programs, other=0.0, cache_modifier=".cg")
        parts = parts + (part,)  # noqa: RUF005
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
    tl.store(metrics_ptr + 12, (low + high + beyond) * per)


@triton.jit
def _tokens_kernel(
    loss_ptr, metrics_ptr, g_ptr, h_ptr, partial_ptr, counts_ptr, counters_ptr, logp_ptr, entropy_ptr, n_tokens, n_units,
    tokens_per_unit, mask_ptr, advantage_ptr, weight_ptr, rho_ptr, count_ptr, old_ptr, ref_ptr, rollout_ptr, starts_ptr,
    tokens_per_advantage, weight_scale, clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
    LOSS: tl.constexpr, KL: tl.constexpr, CORRECTION: tl.constexpr, TRUNCATE: tl.constexpr, SEQUENCE_RATIO: tl.constexpr,
    BY_LENGTH: tl.constexpr, OWN_COUNT: tl.constexpr, UNIT_ADVANTAGE: tl.constexpr, BLOCK: tl.constexpr,
    MOST_PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Programs stride over the units."""
    SEQUENCE_CORRECTION: tl.constexpr = CORRECTION == 3 and rho_ptr is None
    scale = weight_scale
    if OWN_COUNT:
        scale = scale / _count_all(mask_ptr, counts_ptr, counters_ptr, n_tokens, BLOCK, MOST_PROGRAMS)
    if count_ptr is not None:
        scale = scale / tl.load(count_ptr).to(tl.float32)
    zero = tl.zeros([BLOCK // 4], tl.float32)
    loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum = zero, zero, zero, zero, zero, zero
    kl_old_sum, kl_sum, entropy_sum, rho_sum, cut_sum = zero, zero, zero, zero, zero
    omega_sum, omega_square_sum, ratio_max = zero, zero, zero
    for unit in range(tl.program_id(0), n_units, tl.num_programs(0)):
        first, last = unit_bounds(unit, starts_ptr, tokens_per_unit, n_tokens)
        share = scale
        length = 1.0
        mean_log_r = 0.0
        sequence_weight = 1.0
        if SEQUENCE_RATIO or BY_LENGTH or SEQUENCE_CORRECTION:
            length, log_r_sum, gap = sequence_sums(
                mask_ptr, logp_ptr, old_ptr, rollout_ptr if SEQUENCE_CORRECTION else None, first, last, BLOCK
            )  # fmt: skip
            length = tl.maximum(length, 1.0)
            mean_log_r = log_r_sum / length
            if BY_LENGTH:
                share = share / length
            if SEQUENCE_CORRECTION:
                sequence_weight, _cut = sequence_rho(gap, correction_min, correction_max, TRUNCATE)
        through_ratio = zero
        for start in range(first, last, BLOCK):
            at = tile_of(start, BLOCK)
            inside = at < last
            active = load_active(mask_ptr, at, inside)
            logp = load_float(logp_ptr, at, inside)
            entropy = load_float(entropy_ptr, at, inside)
            if UNIT_ADVANTAGE:
                advantage = tl.zeros([BLOCK // 4, 4], tl.float32) + tl.load(advantage_ptr + unit).to(tl.float32)
            else:
                advantage = load_float(advantage_ptr, at // tokens_per_advantage, inside)
            ref = load_float(ref_ptr, at, inside)
            old = logp
            if old_ptr is not None:
                old = load_float(old_ptr, at, inside)
            own_log_r = log_ratio(logp, old)
            log_r = own_log_r
            if SEQUENCE_RATIO:
                log_r = own_log_r * 0 + mean_log_r
            correction = sequence_weight
            if CORRECTION == 1 or CORRECTION == 2:
                correction = load_float(rollout_ptr, at, inside)
            elif rho_ptr is not None:
                correction = load_float(rho_ptr, at, inside)
            if weight_ptr is not None:
                share = load_float(weight_ptr, at, inside)
                if count_ptr is not None:
                    share = share / tl.load(count_ptr).to(tl.float32)
            loss, g, g_kl, ratio, low, high, beyond, kl, rho, cut = token_loss(
                logp, log_r, entropy, advantage, share, old, ref, correction,
                clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
                LOSS, KL, CORRECTION, ref_ptr is not None,
            )  # fmt: skip
            if SEQUENCE_RATIO and (LOSS == 0 or LOSS == 2):
                through_ratio += tl.sum(tl.where(active, g, 0.0), 1)
                g = tl.where(logp == logp, 0.0, logp)
            if g_ptr is not None:
                tl.store(g_ptr + at, tl.where(active, g + g_kl, 0.0).to(g_ptr.dtype.element_ty), mask=inside)
            if h_ptr is not None:
                tl.store(h_ptr + at, tl.where(active, -share * entropy_coef, 0.0), mask=inside)
            omega = tl.where(active, ratio * rho, 0.0)
            loss_sum += tl.sum(tl.where(active, loss, 0.0), 1)
            count += tl.sum(tl.where(active, 1.0, 0.0), 1)
            ratio_sum += tl.sum(tl.where(active, ratio, 0.0), 1)
            ratio_max = tl.maximum(ratio_max, tl.max(tl.where(active, ratio, 0.0), 1))
            low_sum += tl.sum(tl.where(active & low, 1.0, 0.0), 1)
            high_sum += tl.sum(tl.where(active & high, 1.0, 0.0), 1)
            beyond_sum += tl.sum(tl.where(active & beyond, 1.0, 0.0), 1)
            kl_old_sum += tl.sum(tl.where(active, ratio - 1 - log_r, 0.0), 1)
            kl_sum += tl.sum(tl.where(active, kl, 0.0), 1)
            entropy_sum += tl.sum(tl.where(active, entropy, 0.0), 1)
            rho_sum += tl.sum(tl.where(active, rho, 0.0), 1)
            cut_sum += tl.sum(tl.where(active & cut, 1.0, 0.0), 1)
            omega_sum += tl.sum(omega, 1)
            omega_square_sum += tl.sum(omega * omega, 1)
        if SEQUENCE_RATIO and (LOSS == 0 or LOSS == 2) and g_ptr is not None:
            # Every token moves the mean by 1 / length, unless its own log ratio is held.
            each = tl.sum(through_ratio) / length
            for start in range(first, last, BLOCK):
                at = tile_of(start, BLOCK)
                inside = at < last
                logp = load_float(logp_ptr, at, inside)
                old = logp
                if old_ptr is not None:
                    old = load_float(old_ptr, at, inside)
                moves = load_active(mask_ptr, at, inside) & (tl.abs(log_ratio(logp, old)) < LOG_RATIO_LIMIT)
                g = tl.load(g_ptr + at, mask=inside).to(tl.float32) + tl.where(moves, each, 0.0)
                tl.store(g_ptr + at, g.to(g_ptr.dtype.element_ty), mask=inside)
    sums = tl.reduce(
        (
            loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum, kl_old_sum, kl_sum, entropy_sum, rho_sum, cut_sum,
            omega_sum, omega_square_sum, ratio_max,
        ),
        0,
        _combine,
    )  # fmt: skip
    programs = tl.num_programs(0)
    for i in tl.static_range(SUMS):
        tl.store(partial_ptr + i * programs + tl.program_id(0), sums[i])
    tl.debug_barrier()
    if tl.atomic_add(counters_ptr + 1, 1, sem="acq_rel") == programs - 1:
        tl.debug_barrier()
        _total(loss_ptr, metrics_ptr, partial_ptr, programs, MOST_PROGRAMS)
        tl.store(counters_ptr, 0)
        tl.store(counters_ptr + 1, 0)


def _workspace(device: torch.device) -> tuple[Tensor, ...]:
    """(partial sums, counts, counters); the counters are 0 between launches."""
    floats = torch.empty(SUMS.value + 1, MOST_PROGRAMS, dtype=torch.float32, device=device)
    return floats[: SUMS.value], floats[SUMS.value], torch.zeros(4, dtype=torch.int32, device=device)


def reduce_tokens(
    logprobs: Tensor, entropy: Tensor | None, batch: Batch, config: LossConfig, g: Tensor | None = None, h: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(loss [], metrics [len(METRICS) + 1]) float32 on the GPU, the last metric being the share of all clipped tokens.

    `g` and `h`, where given, receive dloss/dlogp and dloss/dentropy, of `logprobs`' shape; `g` in its own dtype.
    """
    device, n = logprobs.device, logprobs.numel()
    loss = torch.empty((), dtype=torch.float32, device=device)
    metrics = torch.empty(len(METRICS) + 1, dtype=torch.float32, device=device)
    by_sequence = (
        batch.by_length or config.sequence_ratio or batch.tokens_per_advantage == 0
        or (config.correction.startswith("sequence") and batch.rho is None)
    )  # fmt: skip
    block = BLOCK
    if by_sequence and batch.cu_seqlens is None:
        units, tokens_per_unit, starts = batch.sequences, batch.tokens_per_sequence, None
        block = 256 if tokens_per_unit <= 256 else BLOCK
    elif by_sequence:
        units, tokens_per_unit, starts = batch.sequences, 0, batch.cu_seqlens
    else:
        units, tokens_per_unit, starts = -(-n // BLOCK), BLOCK, None
    programs = max(1, min(units, PER_SM * multiprocessors(device)))
    partial, counts, counters = scratch("tokens", _workspace, device)
    launch(
        _tokens_kernel,
        programs,
        (
            loss, metrics, g, h, partial, counts, counters, logprobs, entropy, n, units, tokens_per_unit, batch.mask, batch.advantages, batch.weight, batch.rho,
            batch.count, batch.old_logprobs, batch.ref_logprobs, batch.rollout_logprobs, starts, batch.tokens_per_advantage, batch.weight_scale,
            *config.scalars,
        ),
        {
            **config.constants, "TRUNCATE": config.correction.endswith("truncate"), "SEQUENCE_RATIO": config.sequence_ratio,
            "BY_LENGTH": batch.by_length, "OWN_COUNT": batch.own_count, "UNIT_ADVANTAGE": batch.tokens_per_advantage == 0,
            "BLOCK": block, "MOST_PROGRAMS": MOST_PROGRAMS,
        },
        num_warps=WARPS if block == BLOCK else 2,
        launch_cooperative_grid=batch.own_count,  # programs wait for one another
    )  # fmt: skip
    return loss, metrics
