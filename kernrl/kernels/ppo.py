"""The policy loss from log-probs that already exist: one launch over the tokens for loss, gradient and metrics."""

from collections.abc import Mapping

import torch
from torch import Tensor

from kernrl.errors import UsageError
from kernrl.kernels.launch import without_functorch
from kernrl.kernels.loss_metrics import Metrics
from kernrl.kernels.over_tokens.token_loss import METRICS, policy_loss_reference
from kernrl.kernels.over_tokens.token_reduce import reduce_tokens
from kernrl.kernels.over_tokens.tokens import expand, read_again, read_options, with_sequence_correction
from kernrl.kernels.scale import scaling

NAMES = (*METRICS, "clip_ratio")


class _PpoLoss(torch.autograd.Function):
    """Hands on what is made already, [the launch that scales a gradient, the gradient, the loss]."""

    @staticmethod
    def forward(ctx, _log_probs: Tensor, made: list):
        ctx.made = made
        return made.pop()

    @staticmethod
    def backward(ctx, grad_loss):  # pyright: ignore[reportIncompatibleMethodOverride]
        made = ctx.made
        if not made or torch.is_grad_enabled():
            raise RuntimeError("ppo_loss can be backpropagated once, and only once differentiated")
        gradient = made.pop()
        made.pop()(gradient, grad_loss)
        return gradient, None


_apply = without_functorch(_PpoLoss)


def loss_and_metrics(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, loss_mask: Tensor | None, options: dict
) -> tuple[Tensor, Tensor]:
    """(loss, [METRICS and the share of all clipped tokens]) of `ppo_loss`'s arguments, on a GPU."""
    given = {**options, "advantages": advantages, "old_logprobs": old_log_probs, "mask": loss_mask}
    differentiable = log_probs.requires_grad and torch.is_grad_enabled()
    own = "ppo", log_probs.dtype, log_probs.get_device(), differentiable
    batch, config = read_again(own, log_probs.shape, 1.0, given)
    values = log_probs if log_probs.is_contiguous() else log_probs.detach().contiguous()
    if not differentiable:
        return reduce_tokens(values, None, batch, config)
    gradient = torch.empty_like(values)
    loss, metrics = reduce_tokens(values, None, batch, config, gradient)
    launches = batch.plan.launches
    scale = launches.get("scale")
    if scale is None:
        scale = launches["scale"] = scaling(gradient.numel(), gradient.device, gradient.dtype)
    return _apply(log_probs, [scale, gradient, loss]), metrics


def ppo_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, loss_mask: Tensor | None = None, **options
) -> tuple[Tensor, Mapping[str, Tensor]]:
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
        return loss, Metrics(NAMES, values)
    options = {**options, "advantages": advantages, "old_logprobs": old_log_probs, "mask": loss_mask}
    batch, config = read_options(log_probs.shape, 1.0, options)
    flat = log_probs.reshape(-1)
    tokens = expand(batch, torch.zeros_like(flat, dtype=torch.int64), config)
    tokens = with_sequence_correction(tokens, flat.detach(), config)
    loss, metrics = policy_loss_reference(flat, torch.zeros_like(flat), tokens, config)
    metrics["clip_ratio"] = metrics["clip_low"] + metrics["clip_high"] + metrics["clip_delta"]
    return loss, metrics
