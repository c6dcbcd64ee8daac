"""The Triton kernels of `vocab`, a row a program, and what `ratio_kl` shares with them."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false, reportAssignmentType=false

import triton
import triton.language as tl

from kernrl.kernels.over_logits.row_math import MOST_ODDS, at_least_lowest, gradient_coefficients, row_outputs
from kernrl.kernels.over_tokens.token_math import load_token, log_ratio, token_loss


@triton.jit
def frame_of_row(ptr, row, vocab, ALIGNED: tl.constexpr):
    """(frame_ptr, head, limit): the line in which a row of `ptr` starts, how many elements into it the row does, and where the
    groups of 16 bytes end that are loaded for it. The last one may be a neighbour's too; of the last row, which has none after
    it, it is left out. Every program has a row."""
    LINE: tl.constexpr = 1024 // ptr.dtype.element_ty.primitive_bitwidth
    GROUP: tl.constexpr = LINE // 8
    start = row.to(tl.int64) * vocab
    base = start // LINE * LINE  # `start` itself where rows are aligned; so the compiler knows
    head = 0
    if not ALIGNED:
        head = (start - base).to(tl.int32)
    groups = (head + vocab + GROUP - 1) // GROUP
    if not ALIGNED:
        groups = tl.where(row == tl.num_programs(0) - 1, (head + vocab) // GROUP, groups)
    return ptr + base, head, groups * GROUP


@triton.jit
def _load_tile(frame_ptr, start, head, vocab, limit, a, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """[BLOCK] logits of the frame from `start` and before `limit`, -inf outside the row and at `a`."""
    at = start + tl.arange(0, BLOCK)
    end = head + vocab
    z = tl.load(frame_ptr + at, mask=at < limit, other=-float("inf")).to(tl.float32)
    special = a // BLOCK == start // BLOCK
    if ALIGNED:
        if special:
            z = tl.where(at == a, -float("inf"), z)
    else:
        if special | (start == 0) | (start + BLOCK > end):
            z = tl.where((at >= head) & (at < end) & (at != a), z, -float("inf"))
    return z


@triton.jit
def _load_rest(frame_ptr, head, vocab, limit, a):
    """[GROUP] logits of the row from `limit`: of the tensor's last row those that fill no group. -inf after them and at `a`."""
    at = limit + tl.arange(0, 128 // frame_ptr.dtype.element_ty.primitive_bitwidth)
    mask = (at >= head) & (at < head + vocab) & (at != a)
    return tl.load(frame_ptr + at, mask=mask, other=-float("inf")).to(tl.float32)


@triton.jit
def _sums(frame_ptr, head, vocab, limit, a, scale, c, ENTROPY: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """(y_a, other, moment) of one row relative to c, without the action's own term: beside it the others would round away."""
    # A sum for each element of a tile: to reduce every tile would leave one share in several lanes of an unaligned row, rounded
    # differently in each, and to store it from all of them would be a race.
    sums = tl.zeros([BLOCK], tl.float32)
    moments = tl.zeros([BLOCK], tl.float32)
    for start in range(0, head + vocab, BLOCK):
        z = _load_tile(frame_ptr, start, head, vocab, limit, a, ALIGNED, BLOCK)
        y = at_least_lowest(z * scale + c)
        e = tl.exp2(y)
        sums += e
        if ENTROPY:
            moments += e * y
    other = tl.sum(sums)
    moment = 0.0
    if ENTROPY:
        moment = tl.sum(moments)
    if not ALIGNED:
        y = at_least_lowest(_load_rest(frame_ptr, head, vocab, limit, a) * scale + c)
        e = tl.exp2(y)
        other += tl.sum(e)
        if ENTROPY:
            moment += tl.sum(e * y)
    return tl.load(frame_ptr + a).to(tl.float32) * scale + c, other, moment


@triton.jit
def row_stats(frame_ptr, head, vocab, limit, a, scale, ENTROPY: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """(logp, entropy, c) of one row, with p_v = 2^(z_v * scale + c); `a` is the action within the frame."""
    c = -tl.load(frame_ptr + a).to(tl.float32) * scale
    y_a, other, moment = _sums(frame_ptr, head, vocab, limit, a, scale, c, ENTROPY, ALIGNED, BLOCK)
    if not other < MOST_ODDS:  # NaN too
        highest = tl.full([BLOCK], -float("inf"), tl.float32)
        for start in range(0, head + vocab, BLOCK):
            highest = tl.maximum(highest, _load_tile(frame_ptr, start, head, vocab, limit, -BLOCK, ALIGNED, BLOCK))
        top = tl.max(highest)
        if not ALIGNED:
            top = tl.maximum(top, tl.max(_load_rest(frame_ptr, head, vocab, limit, -1)))
        c = tl.where(top == -float("inf"), 0.0, -top * scale)
        y_a, other, moment = _sums(frame_ptr, head, vocab, limit, a, scale, c, ENTROPY, ALIGNED, BLOCK)
    logp, entropy, shift = row_outputs(y_a, other, moment)
    return logp, entropy, c + shift


@triton.jit
def _store_tile(out_ptr, at, d, head, end, ALIGNED: tl.constexpr):
    """Store the groups of a tile that are the row's alone."""
    GROUP: tl.constexpr = 128 // out_ptr.dtype.element_ty.primitive_bitwidth
    inside = at < end // GROUP * GROUP
    if not ALIGNED:
        inside = inside & (at >= (head + GROUP - 1) // GROUP * GROUP)
    tl.store(out_ptr + at, d.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _edges(out_ptr, head, end):
    """([GROUP], [GROUP], [GROUP], [GROUP]): where a row's first and last group are, and which of their elements are its own."""
    GROUP: tl.constexpr = 128 // out_ptr.dtype.element_ty.primitive_bitwidth
    first = head // GROUP * GROUP + tl.arange(0, GROUP)
    last = end // GROUP * GROUP + tl.arange(0, GROUP)
    apart = (end // GROUP > head // GROUP) | (head % GROUP == 0)
    return first, (first >= head) & (first < end) & (head % GROUP > 0), last, (last < end) & apart


@triton.jit
def _gradient(z, scale, c, constant, slope, ENTROPY_GRADIENT: tl.constexpr):
    y = z * scale + c
    d = constant
    if ENTROPY_GRADIENT:
        y = at_least_lowest(y)
        d = constant + slope * y
    return d * tl.exp2(y)


@triton.jit
def write_gradient(
    out_ptr, frame_ptr, head, vocab, limit, a, scale, c, constant, slope, at_action, ENTROPY_GRADIENT: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of dL/dz. Backwards: what was read last is still in the cache. `out_ptr` may be `frame_ptr`."""
    end = head + vocab
    tiles = tl.cdiv(end, BLOCK)
    for i in range(tiles):
        start = (tiles - 1 - i) * BLOCK
        at = start + tl.arange(0, BLOCK)
        z = tl.load(frame_ptr + at, mask=at < limit, other=-float("inf")).to(tl.float32)
        d = _gradient(z, scale, c, constant, slope, ENTROPY_GRADIENT)
        _store_tile(out_ptr, start + tl.arange(0, BLOCK), d, head, end, ALIGNED)
    if not ALIGNED:
        first, of_first, last, of_last = _edges(out_ptr, head, end)
        z = tl.load(frame_ptr + first, mask=of_first, other=0.0).to(tl.float32)
        d = _gradient(z, scale, c, constant, slope, ENTROPY_GRADIENT)
        tl.store(out_ptr + first, d.to(out_ptr.dtype.element_ty), mask=of_first)
        z = tl.load(frame_ptr + last, mask=of_last, other=0.0).to(tl.float32)
        d = _gradient(z, scale, c, constant, slope, ENTROPY_GRADIENT)
        tl.store(out_ptr + last, d.to(out_ptr.dtype.element_ty), mask=of_last)
    tl.debug_barrier()  # another thread stored the action's element
    tl.store(out_ptr + a, at_action.to(out_ptr.dtype.element_ty))


@triton.jit
def write_zeros(out_ptr, head, vocab, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    end = head + vocab
    for start in range(0, end, BLOCK):
        _store_tile(out_ptr, start + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.float32), head, end, ALIGNED)
    if not ALIGNED:
        first, of_first, last, of_last = _edges(out_ptr, head, end)
        zeros = tl.zeros(first.shape, out_ptr.dtype.element_ty)
        tl.store(out_ptr + first, zeros, mask=of_first)
        tl.store(out_ptr + last, zeros, mask=of_last)


@triton.jit
def valid_id(a, vocab, flag_ptr):
    valid = (a >= 0) & (a < vocab)
    if not valid:
        tl.store(flag_ptr, 1)
    return valid


@triton.jit(do_not_specialize=["vocab"])
def _stats_kernel(
    logits_ptr, ids_ptr, mask_ptr, flag_ptr, logp_ptr, entropy_ptr, c_ptr, vocab, scale, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    active = True
    if mask_ptr is not None:
        active = tl.load(mask_ptr + row) != 0
    logp = 0.0
    entropy = 0.0
    c = 0.0
    if active:
        a = tl.load(ids_ptr + row)
        valid = valid_id(a, vocab, flag_ptr)
        frame_ptr, head, limit = frame_of_row(logits_ptr, row, vocab, ALIGNED)
        logp, entropy, c = row_stats(frame_ptr, head, vocab, limit, tl.where(valid, a, 0) + head, scale, True, ALIGNED, BLOCK)
        logp = tl.where(valid, logp, float("nan"))
    tl.store(logp_ptr + row, logp)
    tl.store(entropy_ptr + row, entropy)
    tl.store(c_ptr + row, c)


@triton.jit(do_not_specialize=["vocab"])
def _gradient_kernel(
    out_ptr, logits_ptr, ids_ptr, mask_ptr, logp_ptr, entropy_ptr, c_ptr, g_ptr, h_ptr, vocab, scale,
    inverse_temperature, ENTROPY_GRADIENT: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    g = 0.0
    if g_ptr is not None:
        g = tl.load(g_ptr + row)
    h = 0.0
    if ENTROPY_GRADIENT:
        h = tl.load(h_ptr + row)
    active = (g != 0) | (h != 0)
    if mask_ptr is not None:
        active = active & (tl.load(mask_ptr + row) != 0)
    out_ptr, head, _ = frame_of_row(out_ptr, row, vocab, ALIGNED)
    if active:
        frame_ptr, _, limit = frame_of_row(logits_ptr, row, vocab, ALIGNED)
        a = tl.load(ids_ptr + row)
        a = tl.where((a >= 0) & (a < vocab), a, 0) + head
        constant, slope, at_action = gradient_coefficients(
            g, h, tl.load(logp_ptr + row), tl.load(entropy_ptr + row), inverse_temperature
        )  # fmt: skip
        write_gradient(
            out_ptr, frame_ptr, head, vocab, limit, a, scale, tl.load(c_ptr + row), constant, slope, at_action,
            ENTROPY_GRADIENT, ALIGNED, BLOCK,
        )  # fmt: skip
    else:
        write_zeros(out_ptr, head, vocab, ALIGNED, BLOCK)


@triton.jit(do_not_specialize=["vocab", "tokens_per_advantage"])
def _loss_kernel(
    out_ptr, logits_ptr, ids_ptr, flag_ptr, logp_ptr, entropy_ptr, g_ptr, mask_ptr, advantage_ptr, weight_ptr, count_ptr,
    old_ptr, ref_ptr, correction_ptr, vocab, tokens_per_advantage, scale, inverse_temperature, weight_scale,
    clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
    LOSS: tl.constexpr, KL: tl.constexpr, CORRECTION: tl.constexpr, ENTROPY_GRADIENT: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: its log-prob, the loss's (g, h) there, its gradient."""
    row = tl.program_id(0).to(tl.int64)
    active = True
    if mask_ptr is not None:
        active = tl.load(mask_ptr + row) != 0
    out_ptr, head, _ = frame_of_row(out_ptr, row, vocab, ALIGNED)
    logp = 0.0
    entropy = 0.0
    g = 0.0
    if active:
        a = tl.load(ids_ptr + row)
        valid = valid_id(a, vocab, flag_ptr)
        a = tl.where(valid, a, 0) + head
        frame_ptr, _, limit = frame_of_row(logits_ptr, row, vocab, ALIGNED)
        logp, entropy, c = row_stats(frame_ptr, head, vocab, limit, a, scale, True, ALIGNED, BLOCK)
        logp = tl.where(valid, logp, float("nan"))
        advantage, weight, old, ref, correction = load_token(
            row, True, advantage_ptr, weight_ptr, count_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage,
            weight_scale,
        )  # fmt: skip
        behaviour = logp
        if old_ptr is not None:
            behaviour = old
        _loss, g_policy, g_kl, _r, _lo, _hi, _be, _kl, _rho, _cut = token_loss(
            logp, log_ratio(logp, behaviour), entropy, advantage, weight, behaviour, ref, correction,
            clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
            LOSS, KL, CORRECTION, ref_ptr is not None,
        )  # fmt: skip
        g = g_policy + g_kl
        if ENTROPY_GRADIENT | (g != 0):
            constant, slope, at_action = gradient_coefficients(g, -weight * entropy_coef, logp, entropy, inverse_temperature)
            write_gradient(
                out_ptr, frame_ptr, head, vocab, limit, a, scale, c, constant, slope, at_action, ENTROPY_GRADIENT, ALIGNED,
                BLOCK,
            )  # fmt: skip
        else:
            write_zeros(out_ptr, head, vocab, ALIGNED, BLOCK)
    else:
        write_zeros(out_ptr, head, vocab, ALIGNED, BLOCK)
    tl.store(logp_ptr + row, logp)
    tl.store(entropy_ptr + row, entropy)
    tl.store(g_ptr + row, g)
