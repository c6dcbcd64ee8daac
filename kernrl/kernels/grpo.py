"""The GRPO family of losses on logits: loss, gradient and metrics with one read and one write of the logits."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from kernrl.errors import UsageError
from kernrl.kernels.launch import once_differentiable, without_functorch
from kernrl.kernels.loss_metrics import Metrics
from kernrl.kernels.over_logits.id_check import require_valid_ids
from kernrl.kernels.over_logits.shares import shares
from kernrl.kernels.over_logits.vocab import masked_rows, vocab_gradient, vocab_loss, vocab_stats, vocab_stats_reference
from kernrl.kernels.over_logits.vocab_parallel import parallel_loss
from kernrl.kernels.over_tokens.token_loss import METRICS, LossConfig, Tokens, policy_loss_reference
from kernrl.kernels.over_tokens.token_reduce import reduce_tokens
from kernrl.kernels.over_tokens.tokens import Batch, expand, read_again, read_options, with_sequence_correction
from kernrl.kernels.scale import scale_


def grpo_loss_reference(
    logits: Tensor, tokens: Tokens, config: LossConfig, temperature: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and metrics of `logits` [N, V] in plain PyTorch, for autograd to differentiate."""
    ids = require_valid_ids(tokens.ids, tokens.mask, logits.shape[-1])
    logp, entropy = vocab_stats_reference(masked_rows(logits, tokens.mask), ids, temperature)
    tokens = with_sequence_correction(tokens, logp.detach(), config)
    return policy_loss_reference(logp, entropy, tokens, config)


def needs_sequences(batch: Batch, config: LossConfig) -> bool:
    """True where the gradient of a token is not known until its whole sequence has been evaluated."""
    return config.sequence_ratio or (config.correction.startswith("sequence") and batch.old_logprobs is None)


def sequence_gradients(
    logp: Tensor, entropy: Tensor, batch: Batch, config: LossConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(loss, metrics, g [N], h [N] or None) of log-probs on a GPU."""
    g, h = torch.empty_like(logp), torch.empty_like(logp) if config.entropy_coef else None
    return *reduce_tokens(logp, entropy, batch, config, g, h), g, h


class _GrpoLoss(torch.autograd.Function):
    """Hands on what is made already, [gradient, loss]."""

    @staticmethod
    def forward(ctx, logits: Tensor, made: list, inplace: bool):
        loss = made.pop()
        ctx.made = made
        ctx.set_materialize_grads(False)
        if inplace and not logits.is_leaf and not logits._is_view():
            ctx.mark_dirty(logits)  # later uses of these logits now lead to `backward` below, which refuses them
            return loss, logits
        if inplace:
            torch.autograd.graph.increment_version(logits)
        return loss, None

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss, grad_logits):  # pyright: ignore[reportIncompatibleMethodOverride]
        if grad_logits is not None:
            raise RuntimeError("logits were used after grpo_loss overwrote them; use inplace=False")
        made, ctx.made = ctx.made, None
        if made is None:
            raise RuntimeError("grpo_loss can be backpropagated once: its gradient has been handed over")
        return None if grad_loss is None else scale_(made.pop(), grad_loss), None, None


_apply = without_functorch(_GrpoLoss)


def _differentiable_loss(
    logits: Tensor, ids: Tensor, batch: Batch, config: LossConfig, temperature: float, inplace: bool
) -> tuple[Tensor, Tensor]:
    """(loss, metrics) on a GPU, where the gradient is made with them."""
    values = logits.detach()
    out = values if inplace else torch.empty_like(values)
    if needs_sequences(batch, config):
        stats = vocab_stats(values, ids, batch.mask, temperature)
        loss, metrics, g, h = sequence_gradients(*stats[:2], batch, config)
        vocab_gradient(out, values, ids, batch.mask, stats, g, h, temperature)
    else:
        tokens = shares(batch, ids, config)
        logp, entropy, _ = vocab_loss(out, values, tokens, config, temperature, launches=batch.plan.launches)
        loss, metrics = reduce_tokens(logp, entropy, batch, config)
    loss, _ = _apply(logits, [out, loss], inplace)
    return loss, metrics


def _gpu_loss(
    logits: Tensor, action_ids: Tensor, temperature: float, inplace: bool, options: dict
) -> tuple[Tensor, Mapping[str, Tensor]]:
    differentiable = logits.requires_grad and torch.is_grad_enabled()
    own = (
        "grpo", differentiable, logits.shape, logits.dtype, logits.get_device(), logits.data_ptr() & 15, action_ids.dtype,
    )  # fmt: skip
    batch, config = read_again(own, action_ids.shape, temperature, options)
    ids = action_ids if action_ids.is_contiguous() else action_ids.contiguous()
    if differentiable:
        if not logits.is_contiguous():
            raise UsageError("logits must be contiguous: mask positions out instead of slicing them off")
        loss, metrics = _differentiable_loss(logits, ids, batch, config, temperature, inplace)
    else:
        rows = logits if logits.is_contiguous() else logits.contiguous()
        logp, entropy, _ = vocab_stats(rows, ids, batch.mask, temperature)
        loss, metrics = reduce_tokens(logp, entropy, batch, config)
    return loss, Metrics(METRICS, metrics)


_OWN = "logits", "action_ids", "temperature", "inplace", "vocab_group", "vocab_start"  # what is no option of the loss


def grpo_loss(
    logits: Tensor,
    action_ids: Tensor,
    *,
    advantages: Tensor,
    temperature: float,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    loss_type: str = "grpo",
    epsilon_low: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
    beta: float = 0.0,
    kl_estimator: str = "k3",
    importance_sampling: str = "token",
    correction: str = "none",
    correction_max: float = 2.0,
    correction_min: float = 0.0,
    entropy_coef: float = 0.0,
    sapo_temperature_pos: float = 1.0,
    sapo_temperature_neg: float = 1.05,
    vespo_power_pos: float = 2.0,
    vespo_power_neg: float = 3.0,
    vespo_decay_pos: float = 3.0,
    vespo_decay_neg: float = 2.0,
    aggregation: str | None = None,
    num_tokens: float | Tensor | None = None,
    num_sequences: int | None = None,
    max_tokens: int | None = None,
    inplace: bool = True,
    vocab_group: dist.ProcessGroup | None = None,
    vocab_start: int | None = None,
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """A policy loss and its metrics; `docs/explanation/losses.md` has the formulas and the sources of every option.

    Args:
        logits: [N, V] or [B, T, V], bfloat16, float16 or float32, contiguous; logits[i] scores action_ids[i].
        action_ids: [N] (packed) or [B, T] int64. Masked ids may hold anything; others outside [0, V) are an error.
        advantages: one a token, or one a sequence.
        temperature: that of sampling. Without a default, because a wrong one biases every ratio.
        old_logprobs: behaviour policy, of action_ids' shape; None for the present policy (ratio 1).
        ref_logprobs: reference policy, for the KL term.
        rollout_logprobs: as the rollout engine reported them, for `correction`.
        mask: of action_ids' shape, True where a token counts.
        cu_seqlens: [S + 1] where each packed sequence starts, ending in N; needed for anything per sequence.
        loss_type: grpo, bnpo, dapo and dr_grpo (the clipped surrogate; they differ in aggregation), gspo and luspo (the
            same of a sequence's ratio), gmpo, cispo, sapo, vespo, or reinforce (no ratio).
        epsilon_low, epsilon_high: the ratio is clipped to [1 - epsilon_low, 1 + epsilon_high]; high defaults to low. gmpo
            clips the log ratio instead, to [-epsilon_low, epsilon_high].
        delta: bound on the ratio where the advantage is negative (dual clip).
        beta, kl_estimator: weight of the KL to the reference: k1, k2 or k3.
        importance_sampling: "token", or "sequence" for one ratio a sequence.
        correction: none, {token,sequence}_{truncate,mask} by exp(old - rollout), cut at correction_max (and, for a
            mask, below correction_min).
        entropy_coef: weight of the entropy bonus.
        vespo_power_pos, vespo_power_neg, vespo_decay_pos, vespo_decay_neg: k and lambda of vespo's weight W^k exp(lambda
            (1 - W)), by the sign of the advantage.
        aggregation: token_mean, sequence_mean, sequence_sum, fixed_length or sum; None for the loss type's own.
        num_tokens, num_sequences, max_tokens: global normalisers, where the batch is larger than this call's.
        inplace: on a GPU, write the gradient over the logits. Reading the logits afterwards gives the gradient; autograd
            refuses to differentiate through them.
        vocab_group: the ranks that share the vocabulary; `logits` then hold this rank's columns, and everything else is the
            same on every rank, the results too. Not in place. Equal to one process within rounding, by tests on CPUs and on
            two GPUs.
        vocab_start: the id of the first column here; None for rank * columns, as columns of equal number in order have it.

    Returns:
        The scalar loss (float32), and `kernrl.kernels.METRICS` as scalar tensors, means over the active tokens. Nothing
        here waits for the GPU. On a GPU an invalid id makes the loss NaN and `kernrl.kernels.check_ids` raise.

    Raises:
        UsageError: an option or a shape is wrong; on a CPU also an invalid id.
    """
    options = locals()
    for name in _OWN:
        del options[name]
    if logits.shape[:-1] != action_ids.shape:
        raise UsageError(f"logits {tuple(logits.shape)} must be action_ids' shape {tuple(action_ids.shape)} and V")
    if vocab_group is None and logits.is_cuda:
        return _gpu_loss(logits, action_ids, temperature, inplace, options)
    batch, config = read_options(action_ids.shape, temperature, options)
    if vocab_group is not None:
        return parallel_loss(logits, None, action_ids, batch, config, temperature, vocab_group, vocab_start)
    tokens = expand(batch, action_ids, config)
    return grpo_loss_reference(logits.reshape(-1, logits.shape[-1]), tokens, config, temperature)
