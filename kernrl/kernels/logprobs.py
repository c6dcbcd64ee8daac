"""Log-probs and entropies of given tokens: for old and reference policies, and as a differentiable op."""

import torch
from torch import Tensor

from kernrl.errors import UsageError
from kernrl.kernels.launch import once_differentiable, without_functorch
from kernrl.kernels.linear import linear_stats
from kernrl.kernels.over_logits.id_check import require_valid_ids
from kernrl.kernels.over_logits.vocab import masked_rows, vocab_gradient, vocab_stats, vocab_stats_reference


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, ids: Tensor, mask: Tensor | None, temperature: float):
        logits = logits.contiguous()
        stats = vocab_stats(logits, ids, mask, temperature)
        ctx.save_for_backward(logits, ids, mask, *stats)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return stats[0].clone(), stats[1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_logp, grad_entropy):  # pyright: ignore[reportIncompatibleMethodOverride]
        logits, ids, mask, *stats = ctx.saved_tensors
        g, h = (None if grad is None else grad.contiguous() for grad in (grad_logp, grad_entropy))
        out = torch.empty_like(logits)
        vocab_gradient(out, logits, ids, mask, tuple(stats), g, h, ctx.temperature)
        return out, None, None, None


_apply = without_functorch(_TokenLogprobs)


def _gpu_logprobs(logits: Tensor, ids: Tensor, mask: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    ids = ids.contiguous()
    mask = None if mask is None else mask.to(torch.bool).contiguous()
    if logits.requires_grad and torch.is_grad_enabled():
        return _apply(logits, ids, mask, temperature)
    logp, entropy, _ = vocab_stats(logits.contiguous(), ids, mask, temperature)
    return logp, entropy


def token_logprobs(
    inputs: Tensor,
    action_ids: Tensor,
    *,
    temperature: float,
    lm_head_weight: Tensor | None = None,
    mask: Tensor | None = None,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Tensor]:
    """log p(action) and the entropy of the whole distribution, float32 of action_ids' shape, 0 where masked.

    Args:
        inputs: logits [N, V] or [B, T, V] (differentiable), or, with `lm_head_weight` [V, H], hidden states [N, H] or
            [B, T, H] (on a GPU not differentiable: use `linear_grpo_loss` to train).
        action_ids: [N] or [B, T] int64.
        temperature: that of sampling.
        mask: of action_ids' shape, True where a token counts.
        chunk_rows: most rows of logits made at a time from hidden states; None for what 640 MiB hold.

    Raises:
        UsageError: shapes disagree; a gradient is asked through hidden states on a GPU; on a CPU, an invalid id.
    """
    if inputs.shape[:-1] != action_ids.shape:
        raise UsageError(f"inputs {tuple(inputs.shape)} must start with action_ids' shape {tuple(action_ids.shape)}")
    if not temperature > 0:
        raise UsageError(f"temperature={temperature} must be above 0")
    if inputs.is_cuda and lm_head_weight is None:
        return _gpu_logprobs(inputs, action_ids, mask, temperature)
    rows, ids = inputs.reshape(-1, inputs.shape[-1]), action_ids.reshape(-1).contiguous()
    flat_mask = None if mask is None else mask.reshape(-1).to(torch.bool).contiguous()
    if lm_head_weight is None or not inputs.is_cuda:
        rows = masked_rows(rows, flat_mask)
        logits = rows if lm_head_weight is None else rows @ lm_head_weight.t()
        logp, entropy = vocab_stats_reference(logits, require_valid_ids(ids, flat_mask, logits.shape[-1]), temperature)
        if flat_mask is not None:
            logp, entropy = logp.where(flat_mask, 0.0), entropy.where(flat_mask, 0.0)
    elif torch.is_grad_enabled() and (inputs.requires_grad or lm_head_weight.requires_grad):
        raise UsageError("token_logprobs from hidden states has no gradient on a GPU; call it under torch.no_grad()")
    else:
        logp, entropy = linear_stats(rows, lm_head_weight, ids, flat_mask, temperature, chunk_rows)
    return logp.view(action_ids.shape), entropy.view(action_ids.shape)
