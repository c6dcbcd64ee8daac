"""The Triton kernel of `token_reduce`."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false, reportAssignmentType=false

import triton
import triton.language as tl

from kernrl.kernels.over_tokens.token_math import LOG_RATIO_LIMIT, load_float, log_ratio, token_loss
from kernrl.kernels.over_tokens.token_tiles import (
    _clipped_log_ratio,
    _clipped_sum,
    _load_tile,
    load_active,
    sequence_rho,
    sequence_sums,
    tile_of,
    unit_bounds,
)

SUMS = tl.constexpr(14)  # what `_combine` adds up


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
def _count_all(own, mask_ptr, arrived_ptr, n_tokens, BLOCK: tl.constexpr):
    """How many tokens count, for every program: each counts a part and waits for the others. `own` is that part if a tile a
    program is all there is. Arrivals and counts share one word, which whole numbers may be added to in any order."""
    counts = own
    if n_tokens > tl.num_programs(0) * BLOCK:
        counts = own * 0
        for start in range(tl.program_id(0) * (4 * BLOCK), n_tokens, tl.num_programs(0) * (4 * BLOCK)):
            for part in tl.static_range(4):
                at = tile_of(start + part * BLOCK, BLOCK)
                inside = at < n_tokens
                mask = tl.load(mask_ptr + at, mask=inside, other=0, eviction_policy="evict_last")
                counts += tl.sum(tl.where(inside & (mask != 0), 1.0, 0.0), 1)
    word = tl.sum(counts).to(tl.int64) * 65536 + 1
    tl.atomic_add(arrived_ptr, word, sem="relaxed")
    return _wait_for_all(arrived_ptr)


@triton.jit
def _wait_for_all(arrived_ptr):
    """How many tokens count, once every program has said how many of its own do."""
    seen = tl.load(arrived_ptr, volatile=True)
    while seen % 65536 < tl.num_programs(0):
        seen = tl.load(arrived_ptr, volatile=True)
    return tl.maximum((seen // 65536).to(tl.float32), 1.0)


@triton.jit
def _store_gradients(g_ptr, h_ptr, at, inside, active, g, h):
    if g_ptr is not None:
        tl.store(g_ptr + at, tl.where(active, g, 0.0).to(g_ptr.dtype.element_ty), mask=inside)
    if h_ptr is not None:
        tl.store(h_ptr + at, tl.where(active, h, 0.0), mask=inside)


@triton.jit
def _add_tile(
    loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum, kl_old_sum, kl_sum, entropy_sum, rho_sum, cut_sum, omega_sum,
    omega_square_sum, ratio_max, active, loss, log_r, entropy, ratio, low, high, beyond, kl, rho, cut,
):  # fmt: skip
    """The SUMS with a tile's active tokens added, four neighbours to a lane."""
    omega = tl.where(active, ratio * rho, 0.0)
    return (
        loss_sum + tl.sum(tl.where(active, loss, 0.0), 1), count + tl.sum(tl.where(active, 1.0, 0.0), 1),
        ratio_sum + tl.sum(tl.where(active, ratio, 0.0), 1), low_sum + tl.sum(tl.where(active & low, 1.0, 0.0), 1),
        high_sum + tl.sum(tl.where(active & high, 1.0, 0.0), 1),
        beyond_sum + tl.sum(tl.where(active & beyond, 1.0, 0.0), 1),
        kl_old_sum + tl.sum(tl.where(active, ratio - 1 - log_r, 0.0), 1), kl_sum + tl.sum(tl.where(active, kl, 0.0), 1),
        entropy_sum + tl.sum(tl.where(active, entropy, 0.0), 1), rho_sum + tl.sum(tl.where(active, rho, 0.0), 1),
        cut_sum + tl.sum(tl.where(active & cut, 1.0, 0.0), 1), omega_sum + tl.sum(omega, 1),
        omega_square_sum + tl.sum(omega * omega, 1), tl.maximum(ratio_max, tl.max(tl.where(active, ratio, 0.0), 1)),
    )  # fmt: skip


@triton.jit
def _total(loss_ptr, metrics_ptr, partial_ptr, programs, scale, MOST_PROGRAMS: tl.constexpr):
    at = tl.arange(0, MOST_PROGRAMS)
    parts = ()
    for i in tl.static_range(SUMS):
        part = tl.load(partial_ptr + i * programs + at, mask=at < programs, other=0.0, cache_modifier=".cg")
        parts = parts + (part,)  # noqa: RUF005
    loss, count, ratio, low, high, beyond, kl_old, kl, entropy, rho, cut, omega, omega_square, ratio_max = tl.reduce(
        parts, 0, _combine
    )  # fmt: skip
    per = 1 / tl.maximum(count, 1.0)
    tl.store(loss_ptr, loss * scale)
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
    loss_ptr, metrics_ptr, g_ptr, h_ptr, partial_ptr, arrived_ptr, done_ptr, logp_ptr, entropy_ptr, mask_ptr, advantage_ptr,
    weight_ptr, rho_ptr, count_ptr, old_ptr, ref_ptr, rollout_ptr, starts_ptr, n_tokens, n_units, tokens_per_unit,
    tokens_per_advantage,
    weight_scale, clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
    LOSS: tl.constexpr, KL: tl.constexpr, CORRECTION: tl.constexpr, TRUNCATE: tl.constexpr, BY_SEQUENCE: tl.constexpr,
    SEQUENCE_RATIO: tl.constexpr, BY_LENGTH: tl.constexpr, OWN_COUNT: tl.constexpr, UNIT_ADVANTAGE: tl.constexpr,
    HELD: tl.constexpr, BLOCK: tl.constexpr, MOST_PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Programs stride over tiles of tokens, or over sequences. Where HELD tiles a program are all there are,
    their gradients wait in registers for the number of tokens that count, and the programs for one another once."""
    SEQUENCE_CORRECTION: tl.constexpr = CORRECTION == 3 and rho_ptr is None
    THROUGH_RATIO: tl.constexpr = SEQUENCE_RATIO and (LOSS == 0 or LOSS == 2 or LOSS == 5)
    correction_ptr = rho_ptr if CORRECTION == 3 else rollout_ptr
    program, programs = tl.program_id(0), tl.num_programs(0)
    # The first tile is on its way while the programs count.
    at = tile_of(program * BLOCK, BLOCK)
    active, logp, entropy, advantage, weight, old, ref, correction = _load_tile(
        at, at < n_tokens, 0, mask_ptr, logp_ptr, entropy_ptr, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr,
        tokens_per_advantage, UNIT_ADVANTAGE,
    )  # fmt: skip
    scale = weight_scale
    if OWN_COUNT and not HELD:
        scale = scale / _count_all(tl.sum(tl.where(active, 1.0, 0.0), 1), mask_ptr, arrived_ptr, n_tokens, BLOCK)
    if count_ptr is not None:
        scale = scale / tl.load(count_ptr).to(tl.float32)
    zero = tl.zeros([BLOCK // 4], tl.float32)
    loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum = zero, zero, zero, zero, zero, zero
    kl_old_sum, kl_sum, entropy_sum, rho_sum, cut_sum = zero, zero, zero, zero, zero
    omega_sum, omega_square_sum, ratio_max = zero, zero, zero
    gradients, counting = (), ()
    if BY_SEQUENCE:
        for unit in range(program, n_units, programs):
            first, last = unit_bounds(unit, starts_ptr, tokens_per_unit, n_tokens)
            length, log_r_sum, gap = sequence_sums(
                mask_ptr, logp_ptr, old_ptr, rollout_ptr if SEQUENCE_CORRECTION else None, first, last, BLOCK
            )  # fmt: skip
            length = tl.maximum(length, 1.0)
            if LOSS == 5:
                log_r_sum = _clipped_sum(
                    unit, mask_ptr, logp_ptr, old_ptr, advantage_ptr, first, last, tokens_per_advantage, clip_low, clip_high,
                    UNIT_ADVANTAGE, BLOCK,
                )  # fmt: skip
            share = scale
            if BY_LENGTH:
                share = share / length
            sequence_weight = 1.0
            if SEQUENCE_CORRECTION:
                sequence_weight, _cut = sequence_rho(gap, correction_min, correction_max, TRUNCATE)
            through_ratio = zero
            for start in range(first, last, BLOCK):
                at = tile_of(start, BLOCK)
                inside = at < last
                active, logp, entropy, advantage, weight, old, ref, correction = _load_tile(
                    at, inside, unit, mask_ptr, logp_ptr, entropy_ptr, advantage_ptr, weight_ptr, old_ptr, ref_ptr,
                    correction_ptr, tokens_per_advantage, UNIT_ADVANTAGE,
                )  # fmt: skip
                if old_ptr is None:
                    old = logp
                log_r = log_ratio(logp, old)
                own = log_r
                if LOSS == 4:
                    log_r = log_r * 0 + tl.minimum(tl.maximum(log_r_sum, -LOG_RATIO_LIMIT), LOG_RATIO_LIMIT)
                elif SEQUENCE_RATIO:
                    log_r = log_r * 0 + log_r_sum / length
                if SEQUENCE_CORRECTION:
                    correction = tl.zeros([BLOCK // 4, 4], tl.float32) + sequence_weight
                loss, g, g_kl, ratio, low, high, beyond, kl, rho, cut = token_loss(
                    logp, log_r, entropy, advantage, share, old, ref, correction,
                    clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
                    LOSS, KL, CORRECTION, ref_ptr is not None,
                )  # fmt: skip
                if LOSS == 5:
                    low = (own < clip_low) & (advantage < 0)
                    high = (own > clip_high) & (advantage > 0)
                if THROUGH_RATIO:
                    through_ratio += tl.sum(tl.where(active, g, 0.0), 1)
                    g = tl.where(logp == logp, 0.0, logp)
                _store_gradients(g_ptr, h_ptr, at, inside, active, g + g_kl, -share * entropy_coef)
                (
                    loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum, kl_old_sum, kl_sum, entropy_sum, rho_sum,
                    cut_sum, omega_sum, omega_square_sum, ratio_max,
                ) = _add_tile(
                    loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum, kl_old_sum, kl_sum, entropy_sum, rho_sum,
                    cut_sum, omega_sum, omega_square_sum, ratio_max,
                    active, loss, log_r, entropy, ratio, low, high, beyond, kl, rho, cut,
                )  # fmt: skip
            if THROUGH_RATIO and g_ptr is not None:
                # Every token moves the mean by 1 / length, unless its own log ratio is held or clipped.
                each = tl.sum(through_ratio) / length
                for start in range(first, last, BLOCK):
                    at = tile_of(start, BLOCK)
                    inside = at < last
                    logp = load_float(logp_ptr, at, inside)
                    old = logp
                    if old_ptr is not None:
                        old = load_float(old_ptr, at, inside)
                    moves = load_active(mask_ptr, at, inside) & (tl.abs(log_ratio(logp, old)) < LOG_RATIO_LIMIT)
                    if LOSS == 5:
                        if UNIT_ADVANTAGE:
                            advantage = tl.zeros(at.shape, tl.float32) + tl.load(advantage_ptr + unit).to(tl.float32)
                        else:
                            advantage = load_float(advantage_ptr, at // tokens_per_advantage, inside)
                        moves = moves & (
                            _clipped_log_ratio(logp, old, advantage, clip_low, clip_high) == log_ratio(logp, old)
                        )  # fmt: skip
                    g = tl.load(g_ptr + at, mask=inside).to(tl.float32) + tl.where(moves, each, 0.0)
                    tl.store(g_ptr + at, g.to(g_ptr.dtype.element_ty), mask=inside)
    elif HELD:
        for i in tl.static_range(HELD):
            at = tile_of((program + i * programs) * BLOCK, BLOCK)
            after = at + programs * BLOCK
            if i + 1 < HELD:
                (
                    next_active, next_logp, next_entropy, next_advantage, next_weight, next_old, next_ref, next_correction
                ) = _load_tile(
                    after, after < n_tokens, 0, mask_ptr, logp_ptr, entropy_ptr, advantage_ptr, weight_ptr, old_ptr, ref_ptr,
                    correction_ptr, tokens_per_advantage, UNIT_ADVANTAGE,
                )  # fmt: skip
            if old_ptr is None:
                old = logp
            log_r = log_ratio(logp, old)
            loss, g, g_kl, ratio, low, high, beyond, kl, rho, cut = token_loss(
                logp, log_r, entropy, advantage, scale, old, ref, correction,
                clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
                LOSS, KL, CORRECTION, ref_ptr is not None,
            )  # fmt: skip
            gradients = gradients + (tl.where(active, g + g_kl, 0.0),)  # noqa: RUF005 (Triton has no starred tuples)
            counting = counting + (active,)  # noqa: RUF005
            (
                loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum, kl_old_sum, kl_sum, entropy_sum, rho_sum,
                cut_sum, omega_sum, omega_square_sum, ratio_max,
            ) = _add_tile(
                loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum, kl_old_sum, kl_sum, entropy_sum, rho_sum,
                cut_sum, omega_sum, omega_square_sum, ratio_max,
                active, loss, log_r, entropy, ratio, low, high, beyond, kl, rho, cut,
            )  # fmt: skip
            if i + 1 < HELD:
                active, logp, entropy, advantage, weight = next_active, next_logp, next_entropy, next_advantage, next_weight
                old, ref, correction = next_old, next_ref, next_correction
    else:
        for start in range(program * BLOCK, n_tokens, programs * BLOCK):
            at = tile_of(start, BLOCK)
            after = at + programs * BLOCK
            next_active, next_logp, next_entropy, next_advantage, next_weight, next_old, next_ref, next_correction = _load_tile(
                after, after < n_tokens, 0, mask_ptr, logp_ptr, entropy_ptr, advantage_ptr, weight_ptr, old_ptr, ref_ptr,
                correction_ptr, tokens_per_advantage, UNIT_ADVANTAGE,
            )  # fmt: skip
            if old_ptr is None:
                old = logp
            log_r = log_ratio(logp, old)
            share = scale
            if weight_ptr is not None:
                share = weight
                if count_ptr is not None:
                    share = share / tl.load(count_ptr).to(tl.float32)
            loss, g, g_kl, ratio, low, high, beyond, kl, rho, cut = token_loss(
                logp, log_r, entropy, advantage, share, old, ref, correction,
                clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
                LOSS, KL, CORRECTION, ref_ptr is not None,
            )  # fmt: skip
            _store_gradients(g_ptr, h_ptr, at, at < n_tokens, active, g + g_kl, -share * entropy_coef)
            (
                loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum, kl_old_sum, kl_sum, entropy_sum, rho_sum,
                cut_sum, omega_sum, omega_square_sum, ratio_max,
            ) = _add_tile(
                loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum, kl_old_sum, kl_sum, entropy_sum, rho_sum,
                cut_sum, omega_sum, omega_square_sum, ratio_max,
                active, loss, log_r, entropy, ratio, low, high, beyond, kl, rho, cut,
            )  # fmt: skip
            active, logp, entropy, advantage, weight = next_active, next_logp, next_entropy, next_advantage, next_weight
            old, ref, correction = next_old, next_ref, next_correction
    sums = tl.reduce(
        (
            loss_sum, count, ratio_sum, low_sum, high_sum, beyond_sum, kl_old_sum, kl_sum, entropy_sum, rho_sum, cut_sum,
            omega_sum, omega_square_sum, ratio_max,
        ),
        0,
        _combine,
    )  # fmt: skip
    for i in tl.static_range(SUMS):
        tl.store(partial_ptr + i * programs + program, sums[i])
    tl.debug_barrier()
    if HELD:
        # Launches take turns with two words: this one's was cleared by the launch before.
        launch = tl.load(arrived_ptr + 3)
        word_ptr = arrived_ptr + 1 + launch % 2
        tl.atomic_add(word_ptr, sums[1].to(tl.int64) * 65536 + 1, sem="acq_rel")
        scale = 1 / _wait_for_all(word_ptr)
        for i in tl.static_range(HELD):
            at = tile_of((program + i * programs) * BLOCK, BLOCK)
            _store_gradients(
                g_ptr, h_ptr, at, at < n_tokens, counting[i], gradients[i] * scale, -scale * weight_scale * entropy_coef
            )  # fmt: skip
        if program == 0:
            tl.atomic_add(word_ptr, 0, sem="acquire")
            tl.debug_barrier()
            _total(loss_ptr, metrics_ptr, partial_ptr, programs, scale, MOST_PROGRAMS)
            tl.store(arrived_ptr + 1 + (launch + 1) % 2, 0)
            tl.store(arrived_ptr + 3, launch + 1)
    elif tl.atomic_add(done_ptr, 1, sem="acq_rel") == programs - 1:
        tl.debug_barrier()
        _total(loss_ptr, metrics_ptr, partial_ptr, programs, 1.0, MOST_PROGRAMS)
        tl.store(done_ptr, 0)
        if OWN_COUNT:
            tl.store(arrived_ptr, 0)
