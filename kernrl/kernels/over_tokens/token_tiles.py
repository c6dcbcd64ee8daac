"""What the kernels over tokens read: a tile of them, and what one sequence adds up to."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false, reportAssignmentType=false

import triton
import triton.language as tl

from kernrl.kernels.over_tokens.token_math import LOG_RATIO_LIMIT, cut_correction, load_float, log_ratio


@triton.jit
def _add_triples(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def load_active(mask_ptr, at, inside):
    """Which tokens count. Masked ones are read all the same, so that no load waits for the mask's; `where` keeps them out."""
    active = inside
    if mask_ptr is not None:
        active = inside & (tl.load(mask_ptr + at, mask=inside, other=0) != 0)
    return active


@triton.jit
def tile_of(start, BLOCK: tl.constexpr):
    """[BLOCK / 4, 4] indices from `start`: four neighbours to a thread, which one load brings."""
    return start + tl.arange(0, BLOCK // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]


@triton.jit
def unit_bounds(unit, starts_ptr, tokens_per_unit, n_tokens):
    """Where unit's tokens start and end: a sequence's, or a block's."""
    first = unit * tokens_per_unit
    last = tl.minimum(first + tokens_per_unit, n_tokens)
    if starts_ptr is not None:
        first = tl.load(starts_ptr + unit).to(tl.int32)
        last = tl.load(starts_ptr + unit + 1).to(tl.int32)
    return first, last


@triton.jit
def _load_or_zeros(ptr, at, inside):
    """ptr[at] as float32, zeros where ptr is None."""
    value = tl.zeros(at.shape, tl.float32)
    if ptr is not None:
        value = tl.load(ptr + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    return value


@triton.jit
def _load_tile(
    at, inside, unit, mask_ptr, logp_ptr, entropy_ptr, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr,
    tokens_per_advantage, UNIT_ADVANTAGE: tl.constexpr,
):  # fmt: skip
    """(active, logp, entropy, advantage, weight, old, ref, correction) of a tile; zeros for what is not given."""
    if UNIT_ADVANTAGE:
        advantage = tl.zeros(at.shape, tl.float32) + tl.load(advantage_ptr + unit).to(tl.float32)
    else:
        advantage = _load_or_zeros(advantage_ptr, at // tokens_per_advantage, inside)
    return (
        load_active(mask_ptr, at, inside), _load_or_zeros(logp_ptr, at, inside), _load_or_zeros(entropy_ptr, at, inside),
        advantage, _load_or_zeros(weight_ptr, at, inside), _load_or_zeros(old_ptr, at, inside),
        _load_or_zeros(ref_ptr, at, inside), _load_or_zeros(correction_ptr, at, inside),
    )  # fmt: skip


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
def _clipped_log_ratio(logp, old, advantage, clip_low, clip_high):
    """gmpo's: held from above where the advantage is positive, from below where it is not."""
    own = log_ratio(logp, old)
    return tl.where(advantage > 0, tl.minimum(own, clip_high), tl.maximum(own, clip_low))


@triton.jit
def _clipped_sum(
    unit, mask_ptr, logp_ptr, old_ptr, advantage_ptr, first, last, tokens_per_advantage, clip_low, clip_high,
    UNIT_ADVANTAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum of `_clipped_log_ratio` over one sequence's active tokens."""
    total = tl.zeros([BLOCK // 4], tl.float32)
    for start in range(first, last, BLOCK):
        at = tile_of(start, BLOCK)
        active, logp, _entropy, advantage, _weight, old, _ref, _correction = _load_tile(
            at, at < last, unit, mask_ptr, logp_ptr, None, advantage_ptr, None, old_ptr, None, None, tokens_per_advantage,
            UNIT_ADVANTAGE,
        )  # fmt: skip
        if old_ptr is None:
            old = logp
        total += tl.sum(tl.where(active, _clipped_log_ratio(logp, old, advantage, clip_low, clip_high), 0.0), 1)
    return tl.sum(total)


@triton.jit
def sequence_rho(gap, correction_min, correction_max, TRUNCATE: tl.constexpr):
    """(rho, whether it was cut) of a whole sequence."""
    total = tl.minimum(tl.maximum(gap, -LOG_RATIO_LIMIT), LOG_RATIO_LIMIT)
    return cut_correction(tl.exp(total), correction_min, correction_max, TRUNCATE)
