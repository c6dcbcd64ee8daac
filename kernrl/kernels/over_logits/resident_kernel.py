"""The Gluon kernel of `resident`, which describes it: one row, or a piece of one, a program."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false, reportAssignmentType=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from kernrl.kernels.over_logits.resident_rows import (
    _copied_end,
    _deal_rows,
    _frame,
    _group_end,
    _group_start,
    _row_at,
    _row_inputs,
)
from kernrl.kernels.over_logits.row_math import MOST_ODDS, at_least_lowest, gradient_coefficients, row_outputs
from kernrl.kernels.over_tokens.token_math import load_token, log_ratio, token_loss

async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared  # as triton 3.9 calls it


@gluon.jit
def _exp2(x):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _add_pairs(a0, b0, a1, b1):
    return a0 + a1, b0 + b1


@gluon.jit
def _fetch(smem, slot, ptr, chunk, cols, limit, wanted, CHUNK: gl.constexpr):
    """Request a chunk of a piece into a slot; what lies outside its frame arrives as zeros."""
    at = chunk * CHUNK + cols
    async_load(smem.index(slot), ptr + at, mask=(at < limit) & wanted)


@gluon.jit
def _accumulate(z, sums, moments, scale, c, chunk, skip, lane, head, ALIGNED: gl.constexpr, GROUP: gl.constexpr):
    """Add a chunk's 2^y and 2^y y, one group to a lane. A lane whose `skip` is this chunk adds nothing, nor does one that
    meets something before the piece."""
    y = at_least_lowest(z.to(gl.float32) * scale + c)
    e = _exp2(y)
    wanted = skip != chunk
    if not ALIGNED:
        wanted = wanted & ((chunk > 0) | (lane * GROUP >= head))
    sums += gl.where(wanted, gl.convert_layout(gl.sum(e, 1), sums.type.layout), 0.0)
    moments += gl.where(wanted, gl.convert_layout(gl.sum(e * y, 1), moments.type.layout), 0.0)
    return sums, moments


@gluon.jit
def _lane_to_skip(lane, a, here, CHUNK: gl.constexpr, GROUP: gl.constexpr):
    """[CHUNK / GROUP]: the chunk in which a lane meets the action, -1 for the lanes that never do. Its term stays out of the
    lanes' sums, or the others' would round away beside it; to leave out its whole group costs next to nothing."""
    return gl.where((lane == a % CHUNK // GROUP) & here, a // CHUNK, -1)


@gluon.jit
def _group_sums(z, wanted, scale, c):
    """(other, moment) of one group's wanted elements."""
    y = at_least_lowest(z.to(gl.float32) * scale + c)
    e = gl.where(wanted, _exp2(y), 0.0)
    return gl.sum(e, 0), gl.sum(gl.where(wanted, e * y, 0.0), 0)


@gluon.jit
def _careful_sums(row_ptr, vocab, a, scale, cols, lane, CHUNK: gl.constexpr):
    """(c, other, moment) relative to the row's maximum, read again from memory: a rare row, its action all but impossible."""
    highest = gl.full(cols.shape, -float("inf"), gl.float32, cols.type.layout)
    for start in range(0, vocab, CHUNK):
        at = start + cols
        highest = gl.maximum(highest, gl.load(row_ptr + at, mask=at < vocab, other=-float("inf")).to(gl.float32))
    top = gl.max(gl.max(highest, 1), 0)
    c = gl.where(top == -float("inf"), 0.0, -top * scale)
    sums = gl.full(lane.shape, 0.0, gl.float32, lane.type.layout)
    moments = sums
    for start in range(0, vocab, CHUNK):
        at = start + cols
        z = gl.load(row_ptr + at, mask=(at < vocab) & (at != a), other=-float("inf")).to(gl.float32)
        y = at_least_lowest(z * scale + c)
        e = _exp2(y)
        sums += gl.convert_layout(gl.sum(e, 1), sums.type.layout)
        moments += gl.convert_layout(gl.sum(e * y, 1), sums.type.layout)
    other, moment = gl.reduce((sums, moments), 0, _add_pairs)
    return c, other, moment


@gluon.jit
def _exchange(words_ptr, member, tag, other, moment, SHARERS: gl.constexpr, num_warps: gl.constexpr):
    """(other, moment) summed over the programs that share a row, in one order for all of them.

    A word is a value beside the number of the exchange, so that to see the number is to have the value. Two sets of words
    suffice: whoever writes a set again has read the words that its partners wrote after reading it.
    """
    layout: gl.constexpr = gl.BlockedLayout([2 * SHARERS], [32], [num_warps], [0])  # every thread has all of them
    at = gl.arange(0, 2 * SHARERS, layout=layout)
    words_ptr += tag % 2 * (2 * SHARERS)
    number = tag.to(gl.int64) << 32
    gl.store(words_ptr + 2 * member, number | (other.to(gl.int32, bitcast=True).to(gl.int64) & 0xFFFFFFFF))
    gl.store(words_ptr + 2 * member + 1, number | (moment.to(gl.int32, bitcast=True).to(gl.int64) & 0xFFFFFFFF))
    words = gl.load(words_ptr + at, volatile=True)
    while gl.min(gl.where((words >> 32).to(gl.int32) == tag, 1, 0), 0) == 0:
        words = gl.load(words_ptr + at, volatile=True)
    values = words.to(gl.int32).to(gl.float32, bitcast=True)
    return gl.sum(gl.where(at % 2 == 0, values, 0.0), 0), gl.sum(gl.where(at % 2 == 1, values, 0.0), 0)


@gluon.jit
def _gradient(z, scale, c, constant, slope, ENTROPY_GRADIENT: gl.constexpr):
    y = z.to(gl.float32) * scale + c
    d = constant
    if ENTROPY_GRADIENT:
        y = at_least_lowest(y)
        d = constant + slope * y
    return d * _exp2(y)


@gluon.jit
def _store_gradient(
    z, out_ptr, chunk, cols, lo, hi, scale, c, constant, slope, ENTROPY_GRADIENT: gl.constexpr, ALIGNED: gl.constexpr,
    CHUNK: gl.constexpr,
):  # fmt: skip
    """Store the groups of a chunk that are the piece's alone."""
    at = chunk * CHUNK + cols
    d = _gradient(z, scale, c, constant, slope, ENTROPY_GRADIENT)
    inside = at < hi
    if not ALIGNED:
        inside = inside & (at >= lo)
    gl.store(out_ptr + at, d.to(out_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


@gluon.jit
def _store_edge(
    z, out_ptr, at, wanted, a, at_action, scale, c, constant, slope, ENTROPY_GRADIENT: gl.constexpr
):  # fmt: skip
    """Store the wanted elements of a group that is a neighbour's too."""
    d = gl.where(at == a, at_action, _gradient(z, scale, c, constant, slope, ENTROPY_GRADIENT))
    gl.store(out_ptr + at, d.to(out_ptr.dtype.element_ty), mask=wanted)


@gluon.jit
def _store_zeros(out_ptr, head, end, cols, group, ALIGNED: gl.constexpr, CHUNK: gl.constexpr, GROUP: gl.constexpr):
    """A piece that gets no gradient, from `head` to `end` of its frame."""
    lo = _group_end(head, ALIGNED, GROUP)
    hi = _group_start(end, ALIGNED, GROUP)
    zeros = gl.full(cols.shape, 0.0, out_ptr.dtype.element_ty, cols.type.layout)
    for start in range(0, hi, CHUNK):
        at = start + cols
        inside = at < hi
        if not ALIGNED:
            inside = inside & (at >= lo)
        gl.store(out_ptr + at, zeros, mask=inside, eviction_policy="evict_first")
    if not ALIGNED:  # the groups that are a neighbour's too
        edge = gl.full(group.shape, 0.0, out_ptr.dtype.element_ty, group.type.layout)
        at = head // GROUP * GROUP + group
        gl.store(out_ptr + at, edge, mask=(at >= head) & (at < lo))
        gl.store(out_ptr + hi + group, edge, mask=hi + group < end)


@gluon.jit(do_not_specialize=["n_rows", "vocab", "piece", "tokens_per_advantage"])
def _resident_kernel(
    out_ptr, logits_ptr, ids_ptr, flag_ptr, logp_ptr, entropy_ptr, g_ptr, mask_ptr, advantage_ptr, weight_ptr, count_ptr,
    old_ptr, ref_ptr, correction_ptr, words_ptr, tags_ptr, order_ptr, n_rows, vocab, tokens_per_advantage, piece, scale,
    inverse_temperature, weight_scale,
    clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
    LOSS: gl.constexpr, KL: gl.constexpr, CORRECTION: gl.constexpr, ENTROPY_GRADIENT: gl.constexpr, ALIGNED: gl.constexpr,
    SHARERS: gl.constexpr, CHUNK: gl.constexpr, SLOTS: gl.constexpr, HELD: gl.constexpr, LAG: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """SHARERS programs stride over the rows together, each with its piece. Chunk SLOTS + h takes the slot of chunk h, which
    moves to registers."""
    EARLY: gl.constexpr = SLOTS - LAG  # chunks of a row that are summed while the row before it is stored
    gl.static_assert(HELD <= EARLY, "a chunk would move to registers before it has been summed")
    GROUP: gl.constexpr = 128 // logits_ptr.dtype.element_ty.primitive_bitwidth
    LINE: gl.constexpr = 8 * GROUP
    # How many of a piece's last chunks it may not fill: its frame moves, and the last piece of a row is shorter.
    RAGGED: gl.constexpr = 1 if ALIGNED and SHARERS == 1 else 2
    step = gl.num_programs(0) // SHARERS
    place = gl.program_id(0) // SHARERS
    member = gl.program_id(0) % SHARERS
    n_active = n_rows
    if order_ptr is not None:  # before the chunks take their memory, which this works in
        n_active = _deal_rows(order_ptr, mask_ptr, n_rows, place, step, num_warps)
    blocked: gl.constexpr = gl.BlockedLayout([1, GROUP], [32, 1], [num_warps, 1], [1, 0])
    lanes: gl.constexpr = gl.SliceLayout(1, blocked)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
    smem = gl.allocate_shared_memory(logits_ptr.dtype.element_ty, [SLOTS, CHUNK // GROUP, GROUP], flat)
    group_layout: gl.constexpr = gl.BlockedLayout([GROUP], [32], [num_warps], [0])  # every thread has a whole group
    group = gl.arange(0, GROUP, layout=group_layout)
    lane = gl.arange(0, CHUNK // GROUP, layout=lanes)
    cols = lane[:, None] * GROUP + gl.arange(0, GROUP, layout=gl.SliceLayout(0, blocked))[None, :]

    tag = 0
    if SHARERS > 1:
        tags_ptr += place
        words_ptr += place * (4 * SHARERS)
        tag = gl.load(tags_ptr)
    row = _row_at(place, n_active, n_rows, order_ptr)
    next_row = _row_at(place + step, n_active, n_rows, order_ptr)
    later_row = _row_at(place + 2 * step, n_active, n_rows, order_ptr)
    first = member * piece
    length = gl.minimum(piece, vocab - first)
    if ALIGNED:
        length = length // GROUP * GROUP  # itself; so the compiler knows
    a, valid, active = _row_inputs(row, n_rows, vocab, ids_ptr)
    base, head = _frame(row, vocab, first, ALIGNED, LINE)
    limit = _copied_end(base, head + length, n_rows, vocab, ALIGNED, GROUP)
    for slot in range(SLOTS):
        _fetch(smem, slot, logits_ptr + base, slot, cols, limit, active, CHUNK)
        async_copy.commit_group()
    z_a = gl.load(logits_ptr + row.to(gl.int64) * vocab + a, mask=active & valid, other=float("nan")).to(gl.float32)
    z_a = gl.where(active, z_a, 0.0)
    next_a, next_valid, next_active = _row_inputs(next_row, n_rows, vocab, ids_ptr)
    c = -z_a * scale
    at_a = a - first + head  # the action within the frame
    here = valid & (a >= first) & (a < first + length)
    skip = _lane_to_skip(lane, at_a, here, CHUNK, GROUP)
    sums = gl.full([CHUNK // GROUP], 0.0, gl.float32, lanes)
    moments = sums
    async_copy.wait_group(LAG)
    for chunk in range(EARLY):
        sums, moments = _accumulate(
            smem.index(chunk).load(blocked), sums, moments, scale, c, chunk, skip, lane, head, ALIGNED, GROUP
        )
    while place < n_active:
        ptr = logits_ptr + base
        end = head + length
        lo = _group_end(head, ALIGNED, GROUP)
        hi = _group_start(end, ALIGNED, GROUP)
        limit = _copied_end(base, end, n_rows, vocab, ALIGNED, GROUP)
        next_base, next_head = _frame(next_row, vocab, first, ALIGNED, LINE)
        next_limit = _copied_end(next_base, next_head + length, n_rows, vocab, ALIGNED, GROUP)
        next_ptr = logits_ptr + next_base
        c = -z_a * scale
        here = valid & active & (at_a >= head) & (at_a < end)
        near_at = at_a // GROUP * GROUP + group
        near_wanted = (near_at >= head) & (near_at < end) & (near_at != at_a) & here
        near = gl.load(ptr + near_at, mask=near_wanted, other=0.0)
        head_at = head // GROUP * GROUP + group
        if not ALIGNED:
            head_wanted = (head_at >= head) & (head % GROUP > 0)
            head_z = gl.load(ptr + head_at, mask=head_wanted & active, other=0.0)
        next_row_ptr = logits_ptr + next_row.to(gl.int64) * vocab
        next_z_a = gl.load(next_row_ptr + next_a, mask=next_active & next_valid, other=float("nan")).to(gl.float32)
        far_row = _row_at(place + 3 * step, n_active, n_rows, order_ptr)  # whose number comes while this row is at work
        later_a, later_valid, later_active = _row_inputs(later_row, n_rows, vocab, ids_ptr)
        advantage, weight, old, ref, correction = load_token(
            row, active, advantage_ptr, weight_ptr, count_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage,
            weight_scale,
        )  # fmt: skip

        # The rest of the first pass: chunks 0..HELD-1, summed already, make room for the piece's last ones.
        held = ()
        for h in gl.static_range(HELD):
            held = held + (smem.index(h).load(blocked),)  # noqa: RUF005 (Gluon has no starred tuples)
        for h in gl.static_range(HELD):
            _fetch(smem, h, ptr, SLOTS + h, cols, limit, active, CHUNK)
            async_copy.commit_group()
        for i in gl.static_range(LAG + HELD):  # wait_group(n) waits for all but the last n requests
            async_copy.wait_group(LAG + HELD - 1 - i)
            z = smem.index((EARLY + i) % SLOTS).load(blocked).to(gl.float32)
            if i >= LAG + HELD - RAGGED:
                at = (EARLY + i) * CHUNK + cols
                if not ALIGNED:  # noqa: SIM102 (the first is known when this is compiled)
                    if limit < end:  # the tensor's last elements
                        rest = gl.load(ptr + at, mask=(at >= limit) & (at < end) & active, other=0.0)
                        z = gl.where(at < limit, z, rest.to(gl.float32))
                z = gl.where(at < end, z, -float("inf"))
            sums, moments = _accumulate(z, sums, moments, scale, c, EARLY + i, skip, lane, head, ALIGNED, GROUP)

        other, moment = gl.reduce((sums, moments), 0, _add_pairs)
        near_other, near_moment = _group_sums(near, near_wanted, scale, c)
        other += near_other
        moment += near_moment
        if not ALIGNED:
            # The action's group is summed above, even where it is the first one.
            apart = head_wanted & active & ((at_a // GROUP != head // GROUP) | (here == False))  # noqa: E712
            head_other, head_moment = _group_sums(head_z, apart, scale, c)
            other += head_other
            moment += head_moment
        if SHARERS > 1:  # noqa: SIM102 (the first is known when this is compiled)
            if active:
                tag += 1
                other, moment = _exchange(words_ptr, member, tag, other, moment, SHARERS, num_warps)
        if active & ((other < MOST_ODDS) == False):  # noqa: E712 (NaN too)
            c, other, moment = _careful_sums(
                logits_ptr + row.to(gl.int64) * vocab, vocab, gl.where(valid, at_a - head + first, -1), scale, cols, lane, CHUNK
            )  # fmt: skip
            if SHARERS > 1:  # nobody stores over what another still reads
                tag += 1
                _exchange(words_ptr, member, tag, other, moment, SHARERS, num_warps)
        logp, entropy, shift = row_outputs(z_a * scale + c, other, moment)
        c += shift
        behaviour = logp
        if old_ptr is not None:
            behaviour = old
        _loss, g_policy, g_kl, _r, _lo, _hi, _be, _kl, _rho, _cut = token_loss(
            logp, log_ratio(logp, behaviour), entropy, advantage, weight, behaviour, ref, correction,
            clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
            LOSS, KL, CORRECTION, ref_ptr is not None,
        )  # fmt: skip
        g = g_policy + g_kl
        constant, slope, at_action = gradient_coefficients(g, -weight * entropy_coef, logp, entropy, inverse_temperature)
        constant = gl.where(active, constant, 0.0)
        slope = gl.where(active, slope, 0.0)
        at_action = gl.where(active, at_action, 0.0)
        if member == 0:
            gl.store(logp_ptr + row, gl.where(active, logp, 0.0))
            gl.store(entropy_ptr + row, gl.where(active, entropy, 0.0))
            gl.store(g_ptr + row, gl.where(active, g, 0.0))
            if active & (valid == False):  # noqa: E712
                gl.store(flag_ptr, 1)

        # The second pass, and the next row's first. Slot s < HELD holds chunk SLOTS + s, the others their own.
        next_z_a = gl.where(next_active, next_z_a, 0.0)
        next_c = -next_z_a * scale
        next_at_a = next_a - first + next_head
        next_here = next_valid & (next_a >= first) & (next_a < first + length)
        next_skip = _lane_to_skip(lane, next_at_a, next_here, CHUNK, GROUP)
        sums = gl.full([CHUNK // GROUP], 0.0, gl.float32, lanes)
        moments = sums
        target = out_ptr + base
        for slot in range(LAG):
            present = smem.index(slot).load(blocked)
            _fetch(smem, slot, next_ptr, slot, cols, next_limit, next_active, CHUNK)
            async_copy.commit_group()
            chunk = gl.where(slot < HELD, SLOTS + slot, slot)
            _store_gradient(
                present, target, chunk, cols, lo, hi, scale, c, constant, slope, ENTROPY_GRADIENT, ALIGNED, CHUNK
            )  # fmt: skip
        for slot in range(LAG, SLOTS):
            async_copy.wait_group(LAG - 1)
            leaving = smem.index(slot).load(blocked)
            arrived = smem.index(slot - LAG).load(blocked)
            _fetch(smem, slot, next_ptr, slot, cols, next_limit, next_active, CHUNK)
            async_copy.commit_group()
            chunk = gl.where(slot < HELD, SLOTS + slot, slot)
            _store_gradient(
                leaving, target, chunk, cols, lo, hi, scale, c, constant, slope, ENTROPY_GRADIENT, ALIGNED, CHUNK
            )  # fmt: skip
            sums, moments = _accumulate(
                arrived, sums, moments, scale, next_c, slot - LAG, next_skip, lane, next_head, ALIGNED, GROUP
            )  # fmt: skip
        if not ALIGNED:  # loaded here, not where they are first needed, for the registers' sake
            head_at = head // GROUP * GROUP + group
            head_wanted = (head_at >= head) & (head % GROUP > 0)
            head_z = gl.load(logits_ptr + base + head_at, mask=head_wanted & active, other=0.0)
            tail_at = hi + group
            tail_z = gl.load(logits_ptr + base + tail_at, mask=(tail_at < end) & active, other=0.0)
        for h in gl.static_range(HELD):
            _store_gradient(
                held[h], target, h, cols, lo, hi, scale, c, constant, slope, ENTROPY_GRADIENT, ALIGNED, CHUNK
            )  # fmt: skip
        # The thread that stored the action's element is the one that stores over it, so the order is sure.
        exact = gl.full([CHUNK // GROUP, GROUP], 0.0, gl.float32, blocked) + at_action
        there = (cols == at_a % CHUNK) & here & (at_a >= lo) & (at_a < hi)
        gl.store(target + (at_a - at_a % CHUNK) + cols, exact.to(out_ptr.dtype.element_ty), mask=there)
        if not ALIGNED:
            of_action = gl.where(here, at_a, -1)
            _store_edge(
                head_z, target, head_at, head_wanted, of_action, at_action, scale, c, constant, slope, ENTROPY_GRADIENT
            )  # fmt: skip
            _store_edge(
                tail_z, target, tail_at, tail_at < end, of_action, at_action, scale, c, constant, slope, ENTROPY_GRADIENT
            )  # fmt: skip

        place += step
        row, next_row, later_row = next_row, later_row, far_row
        base, head = next_base, next_head
        at_a, valid, active, z_a, skip = next_at_a, next_valid, next_active, next_z_a, next_skip
        next_a, next_valid, next_active = later_a, later_valid, later_active
    async_copy.wait_group(0)
    if order_ptr is not None:  # the rows that do not count
        while place < n_rows:
            row = gl.load(order_ptr + place)
            base, head = _frame(row, vocab, first, ALIGNED, LINE)
            _store_zeros(out_ptr + base, head, head + length, cols, group, ALIGNED, CHUNK, GROUP)
            if member == 0:
                gl.store(logp_ptr + row, 0.0)
                gl.store(entropy_ptr + row, 0.0)
                gl.store(g_ptr + row, 0.0)
            place += step
    if SHARERS > 1:  # noqa: SIM102
        if member == 0:
            gl.store(tags_ptr, tag)  # every partner has read it: each took part in the first exchange
