"""Kernels over rows of logits: per-row statistics, and the gradient of any loss of them.

With y_v = z_v / temperature, a the row's token, p = softmax(y):

    logp    = y_a - lse(y)                    H = -sum_v p_v ln p_v
    dL/dz_v = (g (1[v = a] - p_v) - h p_v (ln p_v + H)) / temperature,      g = dL/dlogp, h = dL/dH

so these kernels know a loss by (g, h) alone. Their numerics, here and in `resident`:

- Sums run in float32 relative to y_a, not to the maximum: one pass, no rescaling, and logp = -log1p(S / e_a) from S, the
  sum over the *other* tokens, so that log-probs and 1 - p_a stay accurate as p_a -> 1. Where the action is far from likely
  (p_a < 1e-12, or y_a = -inf) the row is summed again relative to its maximum.
- Every gradient is rounded once: that of the action's logit is made in float32 and stored over the row's.
"""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernrl.kernels import resident
from kernrl.kernels.id_check import invalid_id_flag
from kernrl.kernels.row_math import MOST_ODDS, at_least_lowest, gradient_coefficients, row_outputs
from kernrl.kernels.token_loss import LossConfig, Tokens, token_loss
from kernrl.kernels.token_reduce import load_token

LOG2_E = math.log2(math.e)


def vocab_stats_reference(logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(logp, entropy) [N] of `logits` [N, V], differentiable; float32, or float64 where the logits are."""
    y = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    all_logp = y.log_softmax(-1)
    # p ln p = 0 at p = 0: a logit of -inf must not make the row NaN.
    finite = all_logp.where(all_logp > -math.inf, 0.0)
    return all_logp.gather(-1, ids[:, None])[:, 0], -(all_logp.exp() * finite).sum(-1)


@triton.jit
def _sums(row_ptr, vocab, a, scale, c, BLOCK: tl.constexpr):
    """(y_a, other, moment) of one row relative to c, without the action's own term: beside it the others would round away."""
    # A sum for each element of a tile: to reduce every tile would leave one share in several lanes of an unaligned row, rounded
    # differently in each, and to store it from all of them would be a race.
    sums = tl.zeros([BLOCK], tl.float32)
    moments = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        z = tl.load(row_ptr + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
        if a // BLOCK == start // BLOCK:
            z = tl.where(at == a, -float("inf"), z)
        y = at_least_lowest(z * scale + c)
        e = tl.exp2(y)
        sums += e
        moments += e * y
    y_a = tl.load(row_ptr + a).to(tl.float32) * scale + c
    return y_a, tl.sum(sums), tl.sum(moments)


@triton.jit
def _stats(row_ptr, vocab, a, scale, BLOCK: tl.constexpr):
    """(logp, entropy, c) of one row, with p_v = 2^(z_v * scale + c)."""
    c = -tl.load(row_ptr + a).to(tl.float32) * scale
    y_a, other, moment = _sums(row_ptr, vocab, a, scale, c, BLOCK)
    if not other < MOST_ODDS:  # NaN too
        highest = tl.full([BLOCK], -float("inf"), tl.float32)
        for start in range(0, vocab, BLOCK):
            at = start + tl.arange(0, BLOCK)
            highest = tl.maximum(highest, tl.load(row_ptr + at, mask=at < vocab, other=-float("inf")).to(tl.float32))
        top = tl.max(highest)
        c = tl.where(top == -float("inf"), 0.0, -top * scale)
        y_a, other, moment = _sums(row_ptr, vocab, a, scale, c, BLOCK)
    logp, entropy, shift = row_outputs(y_a, other, moment)
    return logp, entropy, c + shift


@triton.jit
def _write_gradient(
    out_ptr, row_ptr, vocab, a, scale, c, constant, slope, at_action, ENTROPY_GRADIENT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One row of dL/dz. Backwards: what was read last is still in the cache. `out_ptr` may be `row_ptr`."""
    tiles = tl.cdiv(vocab, BLOCK)
    for i in range(tiles):
        at = (tiles - 1 - i) * BLOCK + tl.arange(0, BLOCK)
        z = tl.load(row_ptr + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
        y = z * scale + c
        d = constant * tl.exp2(y)
        if ENTROPY_GRADIENT:
            y = at_least_lowest(y)
            d = (constant + slope * y) * tl.exp2(y)
        tl.store(out_ptr + at, d.to(out_ptr.dtype.element_ty), mask=at < vocab)
    tl.debug_barrier()  # another thread stored the action's element
    tl.store(out_ptr + a, at_action.to(out_ptr.dtype.element_ty))


@triton.jit
def _write_zeros(out_ptr, vocab, BLOCK: tl.constexpr):
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + at, tl.zeros([BLOCK], out_ptr.dtype.element_ty), mask=at < vocab)


@triton.jit
def _valid(a, vocab, flag_ptr):
    valid = (a >= 0) & (a < vocab)
    if not valid:
        tl.store(flag_ptr, 1)
    return valid


@triton.jit
def _stats_kernel(
    logits_ptr, ids_ptr, mask_ptr, flag_ptr, logp_ptr, entropy_ptr, c_ptr, vocab, scale, BLOCK: tl.constexpr
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
        valid = _valid(a, vocab, flag_ptr)
        logp, entropy, c = _stats(logits_ptr + row * vocab, vocab, tl.where(valid, a, 0), scale, BLOCK)
        logp = tl.where(valid, logp, float("nan"))
    tl.store(logp_ptr + row, logp)
    tl.store(entropy_ptr + row, entropy)
    tl.store(c_ptr + row, c)


@triton.jit
def _gradient_kernel(
    out_ptr, logits_ptr, ids_ptr, mask_ptr, logp_ptr, entropy_ptr, c_ptr, g_ptr, h_ptr, vocab, scale,
    inverse_temperature, ENTROPY_GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    g = tl.load(g_ptr + row)
    h = 0.0
    if ENTROPY_GRADIENT:
        h = tl.load(h_ptr + row)
    active = (g != 0) | (h != 0)
    if mask_ptr is not None:
        active = active & (tl.load(mask_ptr + row) != 0)
    out_ptr += row * vocab
    if active:
        a = tl.load(ids_ptr + row)
        a = tl.where((a >= 0) & (a < vocab), a, 0)
        constant, slope, at_action = gradient_coefficients(
            g, h, tl.load(logp_ptr + row), tl.load(entropy_ptr + row), inverse_temperature
        )  # fmt: skip
        _write_gradient(
            out_ptr, logits_ptr + row * vocab, vocab, a, scale, tl.load(c_ptr + row), constant, slope, at_action,
            ENTROPY_GRADIENT, BLOCK,
        )  # fmt: skip
    else:
        _write_zeros(out_ptr, vocab, BLOCK)


@triton.jit(do_not_specialize=["tokens_per_advantage"])
def _loss_kernel(
    out_ptr, logits_ptr, ids_ptr, flag_ptr, logp_ptr, entropy_ptr, g_ptr, vocab, scale, inverse_temperature,
    mask_ptr, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage, weight_scale,
    clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
    LOSS: tl.constexpr, KL: tl.constexpr, CORRECTION: tl.constexpr, ENTROPY_GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: its log-prob, the loss's (g, h) there, its gradient."""
    row = tl.program_id(0).to(tl.int64)
    active = True
    if mask_ptr is not None:
        active = tl.load(mask_ptr + row) != 0
    out_ptr += row * vocab
    logp = 0.0
    entropy = 0.0
    g = 0.0
    if active:
        a = tl.load(ids_ptr + row)
        valid = _valid(a, vocab, flag_ptr)
        a = tl.where(valid, a, 0)
        logp, entropy, c = _stats(logits_ptr + row * vocab, vocab, a, scale, BLOCK)
        logp = tl.where(valid, logp, float("nan"))
        advantage, weight, old, ref, correction = load_token(
            row, True, advantage_ptr, weight_ptr, old_ptr, ref_ptr, correction_ptr, tokens_per_advantage, weight_scale
        )  # fmt: skip
        _loss, g, h, _r, _lr, _lo, _hi, _be, _kl, _rho, _cut = token_loss(
            logp, entropy, advantage, weight, old, ref, correction,
            clip_low, clip_high, delta, beta, correction_min, correction_max, entropy_coef, sapo_pos, sapo_neg,
            LOSS, KL, CORRECTION, old_ptr is not None, ref_ptr is not None,
        )  # fmt: skip
        if ENTROPY_GRADIENT | (g != 0):
            constant, slope, at_action = gradient_coefficients(g, h, logp, entropy, inverse_temperature)
            _write_gradient(
                out_ptr, logits_ptr + row * vocab, vocab, a, scale, c, constant, slope, at_action, ENTROPY_GRADIENT, BLOCK
            )  # fmt: skip
        else:
            _write_zeros(out_ptr, vocab, BLOCK)
    else:
        _write_zeros(out_ptr, vocab, BLOCK)
    tl.store(logp_ptr + row, logp)
    tl.store(entropy_ptr + row, entropy)
    tl.store(g_ptr + row, g)


def _tile(vocab: int, most: int, per_thread: int = 8) -> dict:
    """The tile of a row, at most `most` elements; chosen by sweep on an H200. Eight elements a thread leave the kernels that
    sum enough registers for several rows an SM, and a short row in two tiles fills more of them."""
    block = max(256, min(most, triton.next_power_of_2(vocab) // 2))
    return {"BLOCK": block, "num_warps": block // (32 * per_thread) or 1}


def vocab_stats(logits: Tensor, ids: Tensor, mask: Tensor | None, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(logp, entropy, c) [N] float32 of `logits` [N, V] on a GPU, p_v = 2^(z_v log2(e) / temperature + c); 0 where masked."""
    n, vocab = logits.shape
    logp, entropy, c = (torch.empty(n, dtype=torch.float32, device=logits.device) for _ in range(3))
    if n:
        mask = None if mask is None else mask.view(torch.uint8)
        flag = invalid_id_flag(logits.device)
        _stats_kernel[(n,)](logits, ids, mask, flag, logp, entropy, c, vocab, LOG2_E / temperature, **_tile(vocab, 2048))
    return logp, entropy, c


def vocab_gradient(
    out: Tensor, logits: Tensor, ids: Tensor, mask: Tensor | None, stats: tuple[Tensor, Tensor, Tensor], g: Tensor,
    h: Tensor | None, temperature: float,
) -> None:  # fmt: skip
    """Write dL/dlogits [N, V] into `out` (which may be `logits`), given `vocab_stats`' answer and g, h [N] float32."""
    n, vocab = logits.shape
    if n:
        mask = None if mask is None else mask.view(torch.uint8)
        _gradient_kernel[(n,)](
            out, logits, ids, mask, *stats, g, h, vocab, LOG2_E / temperature, 1 / temperature,
            ENTROPY_GRADIENT=h is not None, **_tile(vocab, 4096, per_thread=16),
        )  # fmt: skip


def row_results(n: int, device: torch.device) -> Tensor:
    """[3, N] float32, each row at a multiple of 16 bytes: Triton would compile anew for pointers that are not."""
    return torch.empty(3, math.ceil(n / 4) * 4, dtype=torch.float32, device=device)[:, :n]


def vocab_loss(
    out: Tensor, logits: Tensor, tokens: Tokens, config: LossConfig, temperature: float, results: Tensor | None = None
) -> Tensor:
    """[3, N] float32: logp, entropy and g, in `results` where given; writes dloss/dlogits [N, V] into `out` (which may be
    `logits`) in the same launch.

    Rows that fit on chip go through `resident`, which reads and writes each logit once; others are read twice.
    """
    n, vocab = logits.shape
    if results is None:
        results = row_results(n, logits.device)
    if n == 0:
        return results
    args = (out, logits, tokens.ids, invalid_id_flag(logits.device), *results)
    scalars = {"scale": LOG2_E / temperature, "inverse_temperature": 1 / temperature}
    options = {**scalars, **tokens.kernel_args(config), "ENTROPY_GRADIENT": config.entropy_coef != 0}
    if layout := resident.layout_for(logits):
        resident.launch(layout, args, n, vocab, options)
    else:
        _loss_kernel[(n,)](*args, vocab, **options, **_tile(vocab, 4096))
    return results
