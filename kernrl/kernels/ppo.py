"""The policy loss from log-probs that already exist: one launch over the tokens for loss, gradient and metrics."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernrl.errors import UsageError
from kernrl.kernels.grpo import needs_sequences, sequence_gradients
from kernrl.kernels.token_loss import METRICS, LossConfig, Tokens, policy_loss_reference
from kernrl.kernels.token_reduce import reduce_tokens
from kernrl.kernels.tokens import prepare, with_sequence_correction


class _PpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, log_probs: Tensor, tokens: Tokens, config: LossConfig):
        entropy = torch.zeros_like(log_probs)
        if needs_sequences(tokens, config):
            loss, metrics, g, _ = sequence_gradients(log_probs, entropy, tokens, config)
        else:
            if tokens.old_logprobs is not None:
                tokens = with_sequence_correction(tokens, tokens.old_logprobs, config)
            g = torch.empty_like(log_probs)
            loss, metrics = reduce_tokens(log_probs, entropy, tokens, config, g)
        ctx.save_for_backward(g)
        ctx.mark_non_differentiable(metrics)
        return loss, metrics

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss, _grad_metrics):  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.saved_tensors[0] * grad_loss, None, None


def ppo_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, loss_mask: Tensor | None = None, **options
) -> tuple[Tensor, dict[str, Tensor]]:
    """`grpo_loss` for log-probs in place of logits: clip, dual clip, corrections, masks, KL, every loss type.

    Args:
        log_probs, old_log_probs: [B, T] or [N] (packed), float32.
        advantages: of that shape, or one a sequence.
        loss_mask: of that shape; 0 where a token does not count.
        options: the other keywords of `grpo_loss`, but temperature, mask, entropy_coef and inplace.

    Returns:
        The scalar loss and the metrics (`clip_ratio` = clip_low + clip_high + clip_delta among them) as scalar tensors.
    """
    if "entropy_coef" in options:
        raise UsageError("ppo_loss sees no entropies; add the bonus outside, or use grpo_loss")
    ids = torch.zeros_like(log_probs, dtype=torch.int64)
    options = {**options, "advantages": advantages, "old_logprobs": old_log_probs, "mask": loss_mask}
    tokens, config = prepare(ids, 1.0, options)
    flat = log_probs.reshape(-1)
    if log_probs.is_cuda:
        loss, values = _PpoLoss.apply(flat.float().contiguous(), tokens, config)  # pyright: ignore[reportGeneralTypeIssues]
        metrics = dict(zip(METRICS, values.unbind(), strict=True))
    else:
        tokens = with_sequence_correction(tokens, flat.detach(), config)
        loss, metrics = policy_loss_reference(flat, torch.zeros_like(flat), tokens, config)
    metrics["clip_ratio"] = metrics["clip_low"] + metrics["clip_high"] + metrics["clip_delta"]
    return loss, metrics
