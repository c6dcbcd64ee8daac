"""The loss and its gradient in one read and one write of the logits: a row stays on chip between its two passes.

A softmax gradient needs each row twice, first for its sum and then for its gradient. Rows in flight on all SMs together
overflow the L2 cache, so a second read mostly goes to memory again: 3 transfers where 2 would do. Here one program holds
its whole row: SLOTS chunks in shared memory and HELD more in registers (a Qwen row of 151,936 bf16 logits is 304 KB; an
H100's SM has 227 KB and 256 KB of them). Chunks arrive by asynchronous copies that run ahead of the arithmetic:

    first pass    chunks 0..HELD-1 move from their slots to registers, and chunks SLOTS.. take the slots over
    second pass   as each slot's gradient is stored, the same slot of the *next* row is requested

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

from kernrl.kernels.row_math import OVERFLOW, at_least_lowest, gradient_coefficients, row_outputs
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
def _neighbour_sums(near, a, scale, c):
    """(other, moment) of the group of eight that the lanes left out, but for the action's own."""
    y = at_least_lowest(near.to(gl.float32) * scale + c)
    e = gl.where(gl.arange(0, 8, layout=near.type.layout) == (a % 8).to(gl.int32), 0.0, _exp2(y))
    return gl.sum(e, 0), gl.sum(e * y, 0)


@gluon.jit
def _careful_sums(row_ptr, vocab, a, near, skip, scale, cols, CHUNK: gl.constexpr):
    """(c, other, moment) relative to the row's maximum, read again from memory: the rare row whose p_a underflows."""
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
    CHUNK: gl.constexpr, PAIRS: gl.constexpr, HELD: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Programs stride over the rows. Chunks go in pairs, to halve the barriers that separate a slot's users."""
    SLOTS: gl.constexpr = 2 * PAIRS
    AHEAD: gl.constexpr = (SLOTS - HELD) // 2  # pairs of the first pass that need no chunk requested within it
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
    for p in range(PAIRS):
        _fetch(smem, 2 * p, logits_ptr + offset, 2 * p, cols, vocab, active, CHUNK)
        _fetch(smem, 2 * p + 1, logits_ptr + offset, 2 * p + 1, cols, vocab, active, CHUNK)
        async_copy.commit_group()
    valid = (a >= 0) & (a < vocab)
    z_a = gl.load(logits_ptr + offset + a, mask=active & valid, other=float("nan")).to(gl.float32)
    next_a, next_active = _row_inputs(row + step, n_rows, ids_ptr, mask_ptr)
    while row < n_rows:
        row_ptr = logits_ptr + offset
        next_ptr = row_ptr + step.to(gl.int64) * vocab
        z_a = gl.where(active, z_a, 0.0)
        c = -z_a * scale
        # The action's term stays out of the lanes' sums, or the others' would round away beside it; to leave out its whole
        # group of eight costs next to nothing.
        skip = gl.where(lane == (a % CHUNK // 8).to(gl.int32), (a // CHUNK).to(gl.int32), -1)
        near = gl.load(row_ptr + (a - a % 8) + gl.arange(0, 8, layout=eight), mask=active & valid, other=0.0)
        sums = gl.full([CHUNK // 8], 0.0, gl.float32, lanes)
        moments = sums

        advantage, weight, old, ref, correction = load_token(
            row, active, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage, weight_scale
        )  # fmt: skip

        # First pass. wait_group(n) waits for all but the last n requests; empty ones keep n the same in every round.
        held = ()
        for h in gl.static_range(HELD):
            async_copy.wait_group(PAIRS - 1 - h // 2 + h)
            z = smem.index(h).load(blocked)
            _fetch(smem, h, row_ptr, SLOTS + h, cols, vocab, active, CHUNK)
            async_copy.commit_group()
            sums, moments = _accumulate(z, sums, moments, scale, c, h, skip)
            held = held + (z,)  # noqa: RUF005 (Gluon has no starred tuples)
        for p in range(min(AHEAD, PAIRS - 1)):
            async_copy.wait_group(PAIRS - 1 + HELD - (HELD + 1) // 2)
            for i in gl.static_range(2):
                chunk = HELD + 2 * p + i
                sums, moments = _accumulate(smem.index(chunk).load(blocked), sums, moments, scale, c, chunk, skip)
            async_copy.commit_group()
        for p in range(AHEAD, PAIRS - 1):
            async_copy.wait_group(SLOTS - 2 - AHEAD)
            for i in gl.static_range(2):
                chunk = HELD + 2 * p + i
                z = smem.index(chunk % SLOTS).load(blocked)
                sums, moments = _accumulate(z, sums, moments, scale, c, chunk, skip)
                async_copy.commit_group()
        async_copy.wait_group(0)
        for i in gl.static_range(SLOTS - 2, SLOTS):
            z = smem.index((HELD + i) % SLOTS).load(blocked).to(gl.float32)
            z = gl.where((HELD + i) * CHUNK + cols < vocab, z, -float("inf"))
            sums, moments = _accumulate(z, sums, moments, scale, c, HELD + i, skip)

        other, moment = gl.reduce((sums, moments), 0, _add_pairs)
        near_other, near_moment = _neighbour_sums(near, a, scale, c)
        other += near_other
        moment += near_moment
        if active & ((other < OVERFLOW) == False):  # noqa: E712 (NaN too)
            c, other, moment = _careful_sums(row_ptr, vocab, a, near, skip, scale, cols, CHUNK)
        y_a = z_a * scale + c
        logp, entropy, shift = row_outputs(y_a, other, moment)
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

        # Second pass; slot s < HELD holds chunk SLOTS + s, the others their own.
        next_valid = (next_a >= 0) & (next_a < vocab)
        z_a = gl.load(next_ptr + next_a, mask=next_active & next_valid, other=float("nan")).to(gl.float32)
        later_a, later_active = _row_inputs(row + 2 * step, n_rows, ids_ptr, mask_ptr)
        target = out_ptr + offset
        for p in range(PAIRS):
            first = smem.index(2 * p).load(blocked)
            second = smem.index(2 * p + 1).load(blocked)
            _fetch(smem, 2 * p, next_ptr, 2 * p, cols, vocab, next_active, CHUNK)
            _fetch(smem, 2 * p + 1, next_ptr, 2 * p + 1, cols, vocab, next_active, CHUNK)
            async_copy.commit_group()
            chunk = gl.where(2 * p < HELD, SLOTS + 2 * p, 2 * p)
            _store_gradient(first, target, chunk, cols, vocab, scale, c, constant, slope, ENTROPY_GRADIENT, CHUNK)
            chunk = gl.where(2 * p + 1 < HELD, SLOTS + 2 * p + 1, 2 * p + 1)
            _store_gradient(second, target, chunk, cols, vocab, scale, c, constant, slope, ENTROPY_GRADIENT, CHUNK)
        for h in gl.static_range(HELD):
            _store_gradient(held[h], target, h, cols, vocab, scale, c, constant, slope, ENTROPY_GRADIENT, CHUNK)
        # The thread that stored the action's element is the one that stores over it, so the order is sure.
        exact = gl.full([CHUNK // 8, 8], 0.0, gl.float32, blocked) + at_action
        there = (cols == a % CHUNK) & active & valid
        gl.store(target + (a - a % CHUNK) + cols, exact.to(out_ptr.dtype.element_ty), mask=there)

        row += step
        offset += step.to(gl.int64) * vocab
        a, active, valid = next_a, next_active, next_valid
        next_a, next_active = later_a, later_active
    async_copy.wait_group(0)


class Layout(NamedTuple):
    """How a row of a given length is held."""

    chunk: int
    slots: int
    held: int
    warps: int
    programs_per_sm: int
    max_registers: int


# (elements a chunk, most slots, most held, warps, programs an SM, registers a thread), chosen by sweep on an H200: several
# programs an SM hide each other's waits where rows are short (one program takes 1.4x their time at 8192 x 32768),
# and a long row needs the whole SM.
_LAYOUTS = ((1024, 26, 8, 4, 4, 128), (4096, 14, 2, 8, 2, 128), (8192, 14, 5, 16, 1, 128))
_SHORTEST_ROW = 16384  # below, the second read of `vocab`'s kernel finds the row in the cache


def layout_for(logits: Tensor) -> Layout | None:
    """How to hold a row of `logits` [N, V] on chip; None where it does not fit or the GPU lacks what it takes."""
    if not logits.is_cuda or torch.version.hip or torch.cuda.get_device_capability(logits.device)[0] < 9:
        return None
    vocab = logits.shape[1]
    aligned = vocab % 8 == 0 and logits.data_ptr() % 16 == 0
    if logits.dtype not in (torch.bfloat16, torch.float16) or not aligned or vocab < _SHORTEST_ROW:
        return None
    for chunk, most_slots, most_held, warps, programs, registers in _LAYOUTS:
        chunks = -(-vocab // chunk)
        if chunks <= most_slots + most_held:
            slots = min(most_slots, chunks + chunks % 2)
            return Layout(chunk, slots, max(0, chunks - slots), warps, programs, registers)
    return None


def launch(layout: Layout, args: tuple, n_rows: int, vocab: int, options: dict) -> None:
    programs = layout.programs_per_sm * torch.cuda.get_device_properties(args[1].device).multi_processor_count
    _resident_kernel[(min(programs, n_rows),)](
        *args, n_rows, vocab, **options, CHUNK=layout.chunk, PAIRS=layout.slots // 2, HELD=layout.held,
        num_warps=layout.warps, maxnreg=layout.max_registers,
    )  # fmt: skip
