"""What a kernel over logits must know of its tokens beforehand (how many count, each one's weight and correction), on a GPU."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernrl.kernels.launch import Launch, Variant
from kernrl.kernels.over_tokens.token_loss import LossConfig, Tokens
from kernrl.kernels.over_tokens.token_tiles import load_active, sequence_rho, sequence_sums, tile_of, unit_bounds
from kernrl.kernels.over_tokens.tokens import Batch

BLOCK, WARPS = 1024, 8
COUNT_BLOCK, COUNT_WARPS = 16384, 32


@triton.jit
def _count_kernel(count_ptr, mask_ptr, n_tokens, BLOCK: tl.constexpr):
    counts = tl.zeros([BLOCK // 4], tl.float32)
    for start in range(0, n_tokens, BLOCK):
        at = tile_of(start, BLOCK)
        counts += tl.sum(tl.where(load_active(mask_ptr, at, at < n_tokens), 1.0, 0.0), 1)
    tl.store(count_ptr, tl.maximum(tl.sum(counts), 1.0))


@triton.jit
def _shares_kernel(
    weight_ptr, rho_ptr, advantages_ptr, mask_ptr, old_ptr, rollout_ptr, starts_ptr, advantage_ptr, n_tokens, tokens_per_unit,
    weight_scale, correction_min, correction_max, TRUNCATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One sequence a program: what its tokens share, written for each of them."""
    unit = tl.program_id(0)
    first, last = unit_bounds(unit, starts_ptr, tokens_per_unit, n_tokens)
    length, _ratios, gap = sequence_sums(mask_ptr, None, old_ptr, rollout_ptr, first, last, BLOCK)
    rho, _cut = sequence_rho(gap, correction_min, correction_max, TRUNCATE)
    for start in range(first, last, BLOCK):
        at = tile_of(start, BLOCK)
        zero = tl.zeros([BLOCK // 4, 4], tl.float32)
        if weight_ptr is not None:
            tl.store(weight_ptr + at, zero + weight_scale / tl.maximum(length, 1.0), mask=at < last)
        if rho_ptr is not None:
            tl.store(rho_ptr + at, zero + rho, mask=at < last)
        if advantages_ptr is not None:
            tl.store(advantages_ptr + at, zero + tl.load(advantage_ptr + unit).to(tl.float32), mask=at < last)


_count = Variant(_count_kernel, {"BLOCK": COUNT_BLOCK}, num_warps=COUNT_WARPS)
_spread = [Variant(_shares_kernel, {"TRUNCATE": truncate, "BLOCK": BLOCK}, num_warps=WARPS) for truncate in (False, True)]


def shares(batch: Batch, action_ids: Tensor, config: LossConfig) -> Tokens:
    """`tokens.expand` for a GPU, with sequence-level corrections already weights: needs old_logprobs for those."""
    plan, device = batch.plan, action_ids.device
    n = plan.shape.numel()
    count, weight, advantages, correction = batch.count, None, batch.advantages, batch.rollout_logprobs
    if plan.own_count:
        count = torch.empty((), dtype=torch.float32, device=device)
        launch = plan.launches.get("count")
        if launch is None:
            launch = plan.launches["count"] = Launch(_count, 1, (n,))
        launch(count, batch.mask)
    per_sequence = plan.tokens_per_advantage == 0
    by_sequence = config.correction.startswith("sequence")
    if plan.by_length or by_sequence or per_sequence:
        weight, rho, spread = (
            torch.empty(n, dtype=torch.float32, device=device) if wanted else None
            for wanted in (plan.by_length, by_sequence, per_sequence)
        )
        rollout, old = (batch.rollout_logprobs, batch.old_logprobs) if by_sequence else (None, None)
        launch = plan.launches.get("spread")
        if launch is None:
            variant = _spread[config.correction.endswith("truncate")]
            floats = plan.weight_scale, config.correction_min, config.correction_max
            launch = plan.launches["spread"] = Launch(variant, plan.sequences, (n, plan.tokens_per_sequence), floats)
        launch(weight, rho, spread, batch.mask, old, rollout, batch.cu_seqlens, batch.advantages)
        correction = rho if by_sequence else correction
        advantages = spread if spread is not None else advantages
    return Tokens(
        ids=action_ids, advantages=advantages, tokens_per_advantage=plan.tokens_per_advantage or 1, mask=batch.mask,
        weight=weight, count=count, weight_scale=plan.weight_scale, old_logprobs=batch.old_logprobs,
        ref_logprobs=batch.ref_logprobs, correction=correction, cu_seqlens=batch.cu_seqlens,
    )  # fmt: skip
