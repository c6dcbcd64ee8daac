"""The policy loss from log-probs that already exist: one launch over the tokens for loss, gradient and metrics."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernrl.errors import UsageError
from kernrl.kernels.scale import scale_
from kernrl.kernels.token_loss import METRICS, LossConfig, policy_loss_reference
from kernrl.kernels.token_reduce import reduce_tokens
from kernrl.kernels.tokens import Batch, expand, read_options, with_sequence_correction


class _PpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, log_probs: Tensor, batch: Batch, config: LossConfig):
        log_probs = log_probs.contiguous()
        ctx.gradient = torch.empty_like(log_probs)
        loss, metrics = reduce_tokens(log_probs, None, batch, config, ctx.gradient)
        ctx.mark_non_differentiable(metrics)
        ctx.set_materialize_grads(False)
        return loss, metrics

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss, _grad_metrics):  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.gradient is None:
            raise RuntimeError("ppo_loss can be backpropagated once: its gradient has been handed over")
        gradient, ctx.gradient = ctx.gradient, None
        return scale_(gradient, grad_loss), None, None


def loss_and_metrics(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, loss_mask: Tensor | None, options: dict
) -> tuple[Tensor, Tensor]:
    """(loss, [METRICS and the share of all clipped tokens]) of `ppo_loss`'s arguments, on a GPU."""
    options = {**options, "advantages": advantages, "old_logprobs": old_log_probs, "mask": loss_mask}
    batch, config = read_options(log_probs.shape, 1.0, options)
    if log_probs.requires_grad and torch.is_grad_enabled():
        return _PpoLoss.apply(log_probs, batch, config)  # pyright: ignore[reportReturnType]
    return reduce_tokens(log_probs.contiguous(), None, batch, config)


def ppo_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, loss_mask: Tensor | None = None, **options
) -> tuple[Tensor, dict[str, Tensor]]:
    """`grpo_loss` for log-probs in place of logits: clip, dual clip, corrections, masks, KL, every loss type.

    Args:
        log_probs, old_log_probs: [B, T] or [N] (packed).
        advantages: of that shape, or one a sequence.
        loss_mask: of that shape; 0 where a token does not count.
        options: the other keywords of `grpo_loss`, but temperature, mask, entropy_coef and inplace.

    Returns:
        The scalar loss and the metrics (`clip_ratio` = clip_low + clip_high + clip_delta among them) as scalar tensors. On
        a GPU, one launch forward, and one backward that does nothing where the loss is the root; backward runs once.
    """
    if "entropy_coef" in options:
        raise UsageError("ppo_loss sees no entropies; add the bonus outside, or use grpo_loss")
    if log_probs.is_cuda:
        loss, values = loss_and_metrics(log_probs, old_log_probs, advantages, loss_mask, options)
        return loss, dict(zip((*METRICS, "clip_ratio"), values.unbind(), strict=True))
    options = {**options, "advantages": advantages, "old_logprobs": old_log_probs, "mask": loss_mask}
    batch, config = read_options(log_probs.shape, 1.0, options)
    flat = log_probs.reshape(-1)
    tokens = expand(batch, torch.zeros_like(flat, dtype=torch.int64), config)
    tokens = with_sequence_correction(tokens, flat.detach(), config)
    loss, metrics = policy_loss_reference(flat, torch.zeros_like(flat), tokens, config)
    metrics["clip_ratio"] = metrics["clip_low"] + metrics["clip_high"] + metrics["clip_delta"]
    return loss, metrics
