"""Ratio and k3 KL of a policy against its behaviour and reference policies, from both policies' logits."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernrl.errors import UsageError
from kernrl.kernels.launch import Launch, once_differentiable, without_functorch
from kernrl.kernels.logprobs import token_logprobs
from kernrl.kernels.over_logits.id_check import invalid_id_flag
from kernrl.kernels.over_logits.row_math import gradient_coefficients
from kernrl.kernels.over_logits.vocab import LOG2_E, is_aligned, variant
from kernrl.kernels.over_logits.vocab_kernels import frame_of_row, row_stats, valid_id, write_gradient, write_zeros
from kernrl.kernels.over_tokens import token_loss
from kernrl.kernels.over_tokens.token_math import LOG_RATIO_LIMIT, load_float, log_ratio


@triton.jit(do_not_specialize=["vocab"])
def _forward_kernel(
    ratio_ptr, kl_ptr, logp_ptr, ref_logp_ptr, c_ptr, policy_ptr, ref_ptr, ids_ptr, mask_ptr, old_ptr, flag_ptr, vocab, scale,
    POLICY_ALIGNED: tl.constexpr, REF_ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    ratio = 0.0
    kl = 0.0
    logp = 0.0
    ref_logp = 0.0
    c = 0.0
    if tl.load(mask_ptr + row) != 0:
        a = tl.load(ids_ptr + row)
        valid = valid_id(a, vocab, flag_ptr)
        a = tl.where(valid, a, 0)
        ptr, head, limit = frame_of_row(ref_ptr, row, vocab, REF_ALIGNED)
        ref_logp, _, _ = row_stats(ptr, head, vocab, limit, a + head, scale, False, REF_ALIGNED, BLOCK)
        ptr, head, limit = frame_of_row(policy_ptr, row, vocab, POLICY_ALIGNED)
        logp, _, c = row_stats(ptr, head, vocab, limit, a + head, scale, False, POLICY_ALIGNED, BLOCK)
        logp = tl.where(valid, logp, float("nan"))
        ratio = tl.exp(log_ratio(logp, tl.load(old_ptr + row).to(tl.float32)))
        d = log_ratio(ref_logp, logp)
        kl = tl.exp(d) - d - 1
        # Minimum and maximum swallow NaN; a broken row must show.
        broken = (logp != logp) | (ref_logp != ref_logp)
        ratio = tl.where(logp != logp, logp, ratio)
        kl = tl.where(broken, float("nan"), kl)
    tl.store(ratio_ptr + row, ratio)
    tl.store(kl_ptr + row, kl)
    tl.store(logp_ptr + row, logp)
    tl.store(ref_logp_ptr + row, ref_logp)
    tl.store(c_ptr + row, c)


@triton.jit(do_not_specialize=["vocab"])
def _backward_kernel(
    out_ptr, grad_ratio_ptr, grad_kl_ptr, logp_ptr, ref_logp_ptr, c_ptr, policy_ptr, ids_ptr, mask_ptr, old_ptr, vocab, scale,
    inverse_temperature, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)  # what the forward pass read last is still in the cache
    out_ptr, head, _ = frame_of_row(out_ptr, row, vocab, ALIGNED)
    if tl.load(mask_ptr + row) != 0:
        logp = tl.load(logp_ptr + row)
        log_r = log_ratio(logp, tl.load(old_ptr + row).to(tl.float32))
        ref_logp = tl.load(ref_logp_ptr + row)
        d = log_ratio(ref_logp, logp)
        through_ratio = load_float(grad_ratio_ptr, row, True) * tl.exp(log_r)
        through_kl = load_float(grad_kl_ptr, row, True) * (1 - tl.exp(d))
        g = tl.where(tl.abs(log_r) < LOG_RATIO_LIMIT, through_ratio, 0.0)
        g += tl.where(tl.abs(d) < LOG_RATIO_LIMIT, through_kl, 0.0)
        g = tl.where((logp != logp) | (ref_logp != ref_logp), float("nan"), g)
        constant, slope, at_action = gradient_coefficients(g, 0.0, logp, 0.0, inverse_temperature)
        a = tl.load(ids_ptr + row)
        a = tl.where((a >= 0) & (a < vocab), a, 0) + head
        ptr, _, limit = frame_of_row(policy_ptr, row, vocab, ALIGNED)
        write_gradient(
            out_ptr, ptr, head, vocab, limit, a, scale, tl.load(c_ptr + row), constant, slope, at_action, False, ALIGNED, BLOCK
        )  # fmt: skip
    else:
        write_zeros(out_ptr, head, vocab, ALIGNED, BLOCK)


@lru_cache(maxsize=256)
def _forward_launch(n: int, vocab: int, temperature: float, aligned: tuple[bool, bool], *_dtypes_and_device) -> Launch:
    constants = zip(("POLICY_ALIGNED", "REF_ALIGNED"), aligned, strict=True)
    most, per_thread = (2048, 16) if all(aligned) else (1024, 8)  # by sweep on an H200; so is the tile of the gradient
    return Launch(variant(_forward_kernel, most, per_thread, vocab, *constants), n, (vocab,), (LOG2_E / temperature,))


@lru_cache(maxsize=256)
def _backward_launch(n: int, vocab: int, temperature: float, aligned: bool, *_dtypes_and_device) -> Launch:
    floats = LOG2_E / temperature, 1 / temperature
    return Launch(variant(_backward_kernel, 16384, 16, vocab, ("ALIGNED", aligned)), n, (vocab,), floats)


class _RatioKl(torch.autograd.Function):
    @staticmethod
    def forward(ctx, policy: Tensor, ref: Tensor, ids: Tensor, mask: Tensor, old: Tensor, temperature: float):
        policy, ref, ids, mask, old = (x.contiguous() for x in (policy, ref, ids, mask, old))
        device = ids.device
        ratio = torch.empty_like(ids, dtype=torch.float32)
        kl, logp, ref_logp, c = (torch.empty_like(ratio) for _ in range(4))
        kind = temperature, policy.dtype, ids.dtype, mask.dtype, old.dtype, device
        launch = _forward_launch(
            ids.numel(), policy.shape[-1], temperature, (is_aligned(policy), is_aligned(ref)), ref.dtype, *kind
        )
        launch(ratio, kl, logp, ref_logp, c, policy, ref, ids, mask, old, invalid_id_flag(device))
        ctx.save_for_backward(policy, ids, mask, old)
        ctx.kept = kind, logp, ref_logp, c
        ctx.set_materialize_grads(False)
        return ratio, kl

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_ratio, grad_kl):  # pyright: ignore[reportIncompatibleMethodOverride]
        policy, ids, mask, old = ctx.saved_tensors
        kind, *stats = ctx.kept
        out, grads = torch.empty_like(policy), [x if x is None else x.contiguous() for x in (grad_ratio, grad_kl)]
        launch = _backward_launch(
            ids.numel(), policy.shape[-1], kind[0], is_aligned(policy), grad_ratio is None, grad_kl is None, *kind
        )
        launch(out, *grads, *stats, policy, ids, mask, old)
        return out, None, None, None, None, None


_apply = without_functorch(_RatioKl)


def ratio_kl(
    policy_logits: Tensor,
    ref_logits: Tensor,
    action_ids: Tensor,
    attention_mask: Tensor,
    old_logprobs: Tensor,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(ratio, kl), each of action_ids' shape, float32, 0 where masked; differentiable in `policy_logits`.

    ratio = exp(l - l_old) and kl = exp(l_ref - l) - (l_ref - l) - 1 (Schulman's k3 estimator of KL(policy || ref)), with l
    the log-prob of the action. Log ratios are held within +-20. On a GPU one launch forward, which reads both logits, and
    one backward, which reads the policy's and writes their gradient.

    Args:
        policy_logits, ref_logits: [B, T, V] or [N, V]; no gradient goes to ref_logits.
        action_ids, attention_mask, old_logprobs: [B, T] or [N]. Ids at masked positions may hold anything; others
            outside [0, V) raise `UsageError` on a CPU, and NaN and `kernrl.kernels.check_ids` on a GPU.
    """
    given = {"ref_logits": ref_logits.shape[:-1], "attention_mask": attention_mask.shape, "old_logprobs": old_logprobs.shape}
    for name, shape in {"policy_logits": policy_logits.shape[:-1], **given}.items():
        if shape != action_ids.shape:
            raise UsageError(f"{name} must be of action_ids' shape {tuple(action_ids.shape)}, with V after it for logits")
    if policy_logits.is_cuda and action_ids.numel():
        return _apply(policy_logits, ref_logits, action_ids, attention_mask, old_logprobs, temperature)
    mask = attention_mask.to(torch.bool)
    logp, _ = token_logprobs(policy_logits, action_ids, temperature=temperature, mask=mask)
    with torch.no_grad():
        ref, _ = token_logprobs(ref_logits, action_ids, temperature=temperature, mask=mask)
    ratio = token_loss.log_ratio(logp, old_logprobs.to(logp.dtype).where(mask, 0.0)).exp()
    d = -token_loss.log_ratio(logp, ref)
    kl = d.exp() - d - 1
    return ratio.where(mask, 0.0), kl.where(mask, 0.0)
