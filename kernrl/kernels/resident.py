"""The loss and its gradient in one read and one write of the logits: a row stays on chip between its two passes.

A softmax gradient needs each row twice, first for its sum and then for its gradient. Rows in flight on all SMs together
overflow the L2 cache, so a second read mostly goes to memory again: 3 transfers where 2 would do. Here one program holds
its whole row: SLOTS chunks in shared memory and HELD more in registers (a Qwen row of 151,936 bf16 logits is 304 KB; an
H100's SM has 227 KB and 256 KB of them). Chunks arrive by asynchronous copies that run ahead of the arithmetic, and one
row's second pass is the next row's first:

    slot by slot    store the gradient of this row's chunk, request the next row's chunk into its slot, and sum the chunk
                    of the next row that has arrived LAG slots behind
    then            store the gradients of the chunks held in registers; move the next row's first HELD chunks there, and
                    request its last HELD chunks into their slots; sum what is left of it

Written in Gluon (Triton's lower level), because Triton cannot name shared memory; NVIDIA sm_90 and later. Everything else
uses the kernels of `vocab`, which share this one's mathematics through `row_math` and `token_loss`.
"""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false, reportAssignmentType=false

from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from kernrl.kernels.row_math import MOST_ODDS, at_least_lowest, gradient_coefficients, row_outputs
from kernrl.kernels.token_loss import token_loss
from kernrl.kernels.token_reduce import load_token

async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared  # as triton 3.9 calls it


@gluon.jit
def _exp2(x):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _add_pairs(a0, b0, a1, b1):
    return a0 + a1, b0 + b1


@gluon.jit
def _fetch(smem, slot, row_ptr, chunk, cols, vocab, wanted, CHUNK: gl.constexpr):
    """Request a chunk of a row into a slot; what lies outside the row arrives as zeros."""
    at = chunk * CHUNK + cols
    async_load(smem.index(slot), row_ptr + at, mask=(at < vocab) & wanted)


@gluon.jit
def _accumulate(z, sums, moments, scale, c, chunk, skip):
    """Add a chunk's 2^y and 2^y y, eight neighbouring elements to a lane; the lane whose `skip` is this chunk adds nothing."""
    y = at_least_lowest(z.to(gl.float32) * scale + c)
    e = _exp2(y)
    wanted = skip != chunk
    sums += gl.where(wanted, gl.convert_layout(gl.sum(e, 1), sums.type.layout), 0.0)
    moments += gl.where(wanted, gl.convert_layout(gl.sum(e * y, 1), moments.type.layout), 0.0)
    return sums, moments


@gluon.jit
def _lane_to_skip(lane, a, CHUNK: gl.constexpr):
    """[CHUNK / 8]: the chunk in which a lane meets the action, -1 for the lanes that never do. Its term stays out of the
    lanes' sums, or the others' would round away beside it; to leave out its whole group of eight costs next to nothing."""
    return gl.where(lane == (a % CHUNK // 8).to(gl.int32), (a // CHUNK).to(gl.int32), -1)


@gluon.jit
def _neighbour_sums(near, a, scale, c):
    """(other, moment) of the group of eight that the lanes left out, but for the action's own."""
    y = at_least_lowest(near.to(gl.float32) * scale + c)
    e = gl.where(gl.arange(0, 8, layout=near.type.layout) == (a % 8).to(gl.int32), 0.0, _exp2(y))
    return gl.sum(e, 0), gl.sum(e * y, 0)


@gluon.jit
def _careful_sums(row_ptr, vocab, a, near, skip, scale, cols, CHUNK: gl.constexpr):
    """(c, other, moment) relative to the row's maximum, read again from memory: a rare row, its action all but impossible."""
    highest = gl.full(cols.shape, -float("inf"), gl.float32, cols.type.layout)
    for start in range(0, vocab, CHUNK):
        at = start + cols
        highest = gl.maximum(highest, gl.load(row_ptr + at, mask=at < vocab, other=-float("inf")).to(gl.float32))
    top = gl.max(gl.max(highest, 1), 0)
    c = gl.where(top == -float("inf"), 0.0, -top * scale)
    sums = gl.full(skip.shape, 0.0, gl.float32, skip.type.layout)
    moments = sums
    for start in range(0, vocab, CHUNK):
        at = start + cols
        z = gl.load(row_ptr + at, mask=at < vocab, other=-float("inf"))
        sums, moments = _accumulate(z, sums, moments, scale, c, start // CHUNK, skip)
    other, moment = gl.reduce((sums, moments), 0, _add_pairs)
    near_other, near_moment = _neighbour_sums(near, a, scale, c)
    return c, other + near_other, moment + near_moment


@gluon.jit
def _store_gradient(
    z, out_ptr, chunk, cols, vocab, scale, c, constant, slope, ENTROPY_GRADIENT: gl.constexpr, CHUNK: gl.constexpr
):
    at = chunk * CHUNK + cols
    y = z.to(gl.float32) * scale + c
    if ENTROPY_GRADIENT:
        y = at_least_lowest(y)
        d = (constant + slope * y) * _exp2(y)
    else:
        d = constant * _exp2(y)
    gl.store(out_ptr + at, d.to(out_ptr.dtype.element_ty), mask=at < vocab, eviction_policy="evict_first")


@gluon.jit
def _row_inputs(row, n_rows, ids_ptr, mask_ptr):
    """(action, active) of a row; inactive past the last one."""
    active = row < n_rows
    a = gl.load(ids_ptr + row, mask=active, other=0)
    if mask_ptr is not None:
        active = active & (gl.load(mask_ptr + row, mask=active, other=0) != 0)
    return a, active


@gluon.jit(do_not_specialize=["n_rows", "tokens_per_advantage"])
def _resident_kernel(
    out_ptr, logits_ptr, ids_ptr, flag_ptr, logp_ptr, entropy_ptr, g_ptr, n_rows, vocab, scale, inverse_temperature,
    mask_ptr, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage, weight_scale,
    clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
    LOSS: gl.constexpr, KL: gl.constexpr, CORRECTION: gl.constexpr, ENTROPY_GRADIENT: gl.constexpr,
    CHUNK: gl.constexpr, SLOTS: gl.constexpr, HELD: gl.constexpr, LAG: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Programs stride over the rows. Chunk SLOTS + h of a row takes the slot of its chunk h, which moves to registers."""
    EARLY: gl.constexpr = SLOTS - LAG  # chunks of a row that are summed while the row before it is stored
    gl.static_assert(HELD <= EARLY, "a chunk would move to registers before it has been summed")
    blocked: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [num_warps, 1], [1, 0])
    lanes: gl.constexpr = gl.SliceLayout(1, blocked)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
    smem = gl.allocate_shared_memory(logits_ptr.dtype.element_ty, [SLOTS, CHUNK // 8, 8], flat)
    eight: gl.constexpr = gl.BlockedLayout([8], [32], [num_warps], [0])  # every thread has all eight
    lane = gl.arange(0, CHUNK // 8, layout=lanes)
    cols = lane[:, None] * 8 + gl.arange(0, 8, layout=gl.SliceLayout(0, blocked))[None, :]

    step = gl.num_programs(0)
    row = gl.program_id(0)
    a, active = _row_inputs(row, n_rows, ids_ptr, mask_ptr)
    offset = row.to(gl.int64) * vocab
    for slot in range(SLOTS):
        _fetch(smem, slot, logits_ptr + offset, slot, cols, vocab, active, CHUNK)
        async_copy.commit_group()
    valid = (a >= 0) & (a < vocab)
    z_a = gl.load(logits_ptr + offset + a, mask=active & valid, other=float("nan")).to(gl.float32)
    z_a = gl.where(active, z_a, 0.0)
    next_a, next_active = _row_inputs(row + step, n_rows, ids_ptr, mask_ptr)
    c = -z_a * scale
    skip = _lane_to_skip(lane, a, CHUNK)
    sums = gl.full([CHUNK // 8], 0.0, gl.float32, lanes)
    moments = sums
    async_copy.wait_group(LAG)
    for chunk in range(EARLY):
        sums, moments = _accumulate(smem.index(chunk).load(blocked), sums, moments, scale, c, chunk, skip)
    while row < n_rows:
        row_ptr = logits_ptr + offset
        next_ptr = row_ptr + step.to(gl.int64) * vocab
        near = gl.load(row_ptr + (a - a % 8) + gl.arange(0, 8, layout=eight), mask=active & valid, other=0.0)
        next_valid = (next_a >= 0) & (next_a < vocab)
        next_z_a = gl.load(next_ptr + next_a, mask=next_active & next_valid, other=float("nan")).to(gl.float32)
        later_a, later_active = _row_inputs(row + 2 * step, n_rows, ids_ptr, mask_ptr)
        advantage, weight, old, ref, correction = load_token(
            row, active, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage, weight_scale
        )  # fmt: skip

        # The rest of the first pass: chunks 0..HELD-1, summed already, make room for the row's last ones.
        held = ()
        for h in gl.static_range(HELD):
            held = held + (smem.index(h).load(blocked),)  # noqa: RUF005 (Gluon has no starred tuples)
        for h in gl.static_range(HELD):
            _fetch(smem, h, row_ptr, SLOTS + h, cols, vocab, active, CHUNK)
            async_copy.commit_group()
        for i in gl.static_range(LAG + HELD):  # wait_group(n) waits for all but the last n requests
            async_copy.wait_group(LAG + HELD - 1 - i)
            z = smem.index((EARLY + i) % SLOTS).load(blocked).to(gl.float32)
            if i == LAG + HELD - 1:
                z = gl.where((EARLY + i) * CHUNK + cols < vocab, z, -float("inf"))
            sums, moments = _accumulate(z, sums, moments, scale, c, EARLY + i, skip)

        other, moment = gl.reduce((sums, moments), 0, _add_pairs)
        near_other, near_moment = _neighbour_sums(near, a, scale, c)
        other += near_other
        moment += near_moment
        if active & ((other < MOST_ODDS) == False):  # noqa: E712 (NaN too)
            c, other, moment = _careful_sums(row_ptr, vocab, a, near, skip, scale, cols, CHUNK)
        logp, entropy, shift = row_outputs(z_a * scale + c, other, moment)
        c += shift
        _loss, g, h_, _r, _lr, _lo, _hi, _be, _kl, _rho, _cut = token_loss(
            logp, entropy, advantage, weight, old, ref, correction,
            clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
            LOSS, KL, CORRECTION, old_ptr is not None, ref_ptr is not None,
        )  # fmt: skip
        constant, slope, at_action = gradient_coefficients(g, h_, logp, entropy, inverse_temperature)
        constant = gl.where(active, constant, 0.0)
        slope = gl.where(active, slope, 0.0)
        gl.store(logp_ptr + row, gl.where(active, logp, 0.0))
        gl.store(entropy_ptr + row, gl.where(active, entropy, 0.0))
        gl.store(g_ptr + row, gl.where(active, g, 0.0))
        if active & (valid == False):  # noqa: E712
            gl.store(flag_ptr, 1)

        # The second pass, and the next row's first. Slot s < HELD holds chunk SLOTS + s, the others their own.
        next_z_a = gl.where(next_active, next_z_a, 0.0)
        next_c = -next_z_a * scale
        next_skip = _lane_to_skip(lane, next_a, CHUNK)
        sums = gl.full([CHUNK // 8], 0.0, gl.float32, lanes)
        moments = sums
        target = out_ptr + offset
        for slot in range(LAG):
            present = smem.index(slot).load(blocked)
            _fetch(smem, slot, next_ptr, slot, cols, vocab, next_active, CHUNK)
            async_copy.commit_group()
            chunk = gl.where(slot < HELD, SLOTS + slot, slot)
            _store_gradient(present, target, chunk, cols, vocab, scale, c, constant, slope, ENTROPY_GRADIENT, CHUNK)
        for slot in range(LAG, SLOTS):
            async_copy.wait_group(LAG - 1)
            leaving = smem.index(slot).load(blocked)
            arrived = smem.index(slot - LAG).load(blocked)
            _fetch(smem, slot, next_ptr, slot, cols, vocab, next_active, CHUNK)
            async_copy.commit_group()
            chunk = gl.where(slot < HELD, SLOTS + slot, slot)
            _store_gradient(leaving, target, chunk, cols, vocab, scale, c, constant, slope, ENTROPY_GRADIENT, CHUNK)
            sums, moments = _accumulate(arrived, sums, moments, scale, next_c, slot - LAG, next_skip)
        for h in gl.static_range(HELD):
            _store_gradient(held[h], target, h, cols, vocab, scale, c, constant, slope, ENTROPY_GRADIENT, CHUNK)
        # The thread that stored the action's element is the one that stores over it, so the order is sure.
        exact = gl.full([CHUNK // 8, 8], 0.0, gl.float32, blocked) + at_action
        there = (cols == a % CHUNK) & active & valid
        gl.store(target + (a - a % CHUNK) + cols, exact.to(out_ptr.dtype.element_ty), mask=there)

        row += step
        offset += step.to(gl.int64) * vocab
        a, active, valid, z_a, c, skip = next_a, next_active, next_valid, next_z_a, next_c, next_skip
        next_a, next_active = later_a, later_active
    async_copy.wait_group(0)


class Layout(NamedTuple):
    """How a row is held: `slots` chunks in shared memory and `held` in registers."""

    chunk: int  # elements
    slots: int
    held: int
    lag: int
    warps: int
    programs_per_sm: int
    max_registers: int  # a thread


# The most slots and held chunks of each, for rows of growing length; chosen by sweep on an H200. Several programs an SM hide
# each other's waits where rows are short, and a long row needs the whole SM.
_LAYOUTS = (
    Layout(chunk=1024, slots=26, held=8, lag=4, warps=4, programs_per_sm=4, max_registers=128),
    Layout(chunk=4096, slots=14, held=2, lag=4, warps=8, programs_per_sm=2, max_registers=128),
    Layout(chunk=8192, slots=14, held=5, lag=6, warps=16, programs_per_sm=1, max_registers=128),
)
_SHORTEST_ROW = 16384  # below, the second read of `vocab`'s kernel finds the row in the cache


def layout_of_row(vocab: int) -> Layout | None:
    """How to hold a row of `vocab` 16-bit logits; None where it is too short to gain, or too long."""
    if vocab < _SHORTEST_ROW:
        return None
    for layout in _LAYOUTS:
        chunks = -(-vocab // layout.chunk)
        if chunks <= layout.slots + layout.held:
            slots = min(layout.slots, chunks)
            return layout._replace(slots=slots, held=chunks - slots)
    return None


def layout_for(logits: Tensor) -> Layout | None:
    """How to hold a row of `logits` [N, V] on chip; None where it does not fit or the GPU lacks what it takes."""
    if not logits.is_cuda or torch.version.hip or torch.cuda.get_device_capability(logits.device)[0] < 9:
        return None
    vocab = logits.shape[1]
    if logits.dtype not in (torch.bfloat16, torch.float16) or vocab % 8 or logits.data_ptr() % 16:
        return None
    return layout_of_row(vocab)


def launch(layout: Layout, args: tuple, n_rows: int, vocab: int, options: dict) -> None:
    programs = layout.programs_per_sm * torch.cuda.get_device_properties(args[1].device).multi_processor_count
    _resident_kernel[(min(programs, n_rows),)](
        *args, n_rows, vocab, **options, CHUNK=layout.chunk, SLOTS=layout.slots, HELD=layout.held, LAG=layout.lag,
        num_warps=layout.warps, maxnreg=layout.max_registers,
    )  # fmt: skip
