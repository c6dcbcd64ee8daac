"""The GRPO family of losses on logits: loss, gradient and metrics with one read and one write of the logits."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernrl.errors import UsageError
from kernrl.kernels.id_check import require_valid_ids
from kernrl.kernels.token_loss import METRICS, LossConfig, Tokens, policy_loss_reference
from kernrl.kernels.token_reduce import reduce_tokens
from kernrl.kernels.tokens import prepare, with_sequence_correction
from kernrl.kernels.vocab import vocab_gradient, vocab_loss, vocab_stats, vocab_stats_reference


def grpo_loss_reference(
    logits: Tensor, tokens: Tokens, config: LossConfig, temperature: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and metrics of `logits` [N, V] in plain PyTorch, for autograd to differentiate."""
    ids = require_valid_ids(tokens.ids, tokens.mask, logits.shape[-1])
    logp, entropy = vocab_stats_reference(logits, ids, temperature)
    tokens = with_sequence_correction(tokens, logp.detach(), config)
    return policy_loss_reference(logp, entropy, tokens, config)


@triton.jit
def _scale_kernel(x_ptr, factor_ptr, n, BLOCK: tl.constexpr):
    """x *= factor, at no cost where factor is 1: it is read on the GPU, so that nobody waits to know it."""
    factor = tl.load(factor_ptr).to(tl.float32)
    if factor != 1.0:
        for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, tl.num_programs(0) * BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
            tl.store(x_ptr + at, (x * factor).to(x_ptr.dtype.element_ty), mask=at < n)


def scale_(x: Tensor, factor: Tensor) -> Tensor:
    """`x` (contiguous, on a GPU) times the scalar tensor `factor`, in place."""
    _scale_kernel[(min(1024, triton.cdiv(x.numel(), 8192)),)](x, factor, x.numel(), BLOCK=8192, num_warps=8)
    return x


def sequence_gradients(
    logp: Tensor, entropy: Tensor, tokens: Tokens, config: LossConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(loss, metrics, g, h) where one token's gradient depends on its whole sequence: the reference, differentiated on [N]."""
    with torch.enable_grad():
        logp, entropy = logp.detach().requires_grad_(), entropy.detach().requires_grad_()
        tokens = with_sequence_correction(tokens, logp.detach(), config)
        loss, metrics = policy_loss_reference(logp, entropy, tokens, config)
        g, h = torch.autograd.grad(loss, (logp, entropy), materialize_grads=True)
    return loss.detach(), torch.stack([metrics[name] for name in METRICS]), g, h if config.entropy_coef else None


def needs_sequences(tokens: Tokens, config: LossConfig) -> bool:
    """True where the gradient of a token is not known until its whole sequence has been evaluated."""
    return config.sequence_ratio or (config.correction.startswith("sequence") and tokens.old_logprobs is None)


class _GrpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, tokens: Tokens, config: LossConfig, temperature: float, inplace: bool):
        rows = logits.view(-1, logits.shape[-1])
        out = rows if inplace else torch.empty_like(rows)
        if needs_sequences(tokens, config):
            stats = vocab_stats(rows, tokens.ids, tokens.mask, temperature)
            loss, metrics, g, h = sequence_gradients(*stats[:2], tokens, config)
            vocab_gradient(out, rows, tokens.ids, tokens.mask, stats, g, h, temperature)
        else:
            if tokens.old_logprobs is not None:
                tokens = with_sequence_correction(tokens, tokens.old_logprobs, config)
            logp, entropy, _ = vocab_loss(out, rows, tokens, config, temperature)
            loss, metrics = reduce_tokens(logp, entropy, tokens, config)
        ctx.gradient = out.view(logits.shape)
        ctx.mark_non_differentiable(metrics)
        ctx.set_materialize_grads(False)
        if inplace and not logits.is_leaf and not logits._is_view():
            ctx.mark_dirty(logits)  # later uses of these logits now lead to `backward` below, which refuses them
            return loss, metrics, logits
        if inplace:
            torch.autograd.graph.increment_version(logits)
        return loss, metrics, None

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss, _grad_metrics, grad_logits):  # pyright: ignore[reportIncompatibleMethodOverride]
        if grad_logits is not None:
            raise RuntimeError("logits were used after grpo_loss overwrote them; use inplace=False")
        if ctx.gradient is None:
            raise RuntimeError("grpo_loss can be backpropagated once: its gradient has been handed over")
        gradient, ctx.gradient = ctx.gradient, None
        return None if grad_loss is None else scale_(gradient, grad_loss), None, None, None, None


def evaluate_loss(
    logits: Tensor, tokens: Tokens, config: LossConfig, temperature: float, inplace: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    if not logits.is_cuda:
        return grpo_loss_reference(logits.reshape(-1, logits.shape[-1]), tokens, config, temperature)
    if torch.is_grad_enabled() and logits.requires_grad:
        if not logits.is_contiguous():
            raise UsageError("logits must be contiguous: mask positions out instead of slicing them off")
        loss, metrics, _ = _GrpoLoss.apply(logits, tokens, config, temperature, inplace)  # pyright: ignore[reportGeneralTypeIssues]
    else:
        rows = logits.reshape(-1, logits.shape[-1])
        logp, entropy, _ = vocab_stats(rows, tokens.ids, tokens.mask, temperature)
        loss, metrics = loss_of_logprobs(logp, entropy, tokens, config)
    return loss, dict(zip(METRICS, metrics.unbind(), strict=True))


def loss_of_logprobs(logp: Tensor, entropy: Tensor, tokens: Tokens, config: LossConfig) -> tuple[Tensor, Tensor]:
    """(loss, metrics) on a GPU, no gradient."""
    if needs_sequences(tokens, config):
        return sequence_gradients(logp, entropy, tokens, config)[:2]
    if tokens.old_logprobs is not None:
        tokens = with_sequence_correction(tokens, tokens.old_logprobs, config)
    return reduce_tokens(logp, entropy, tokens, config)


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
    aggregation: str | None = None,
    num_tokens: float | Tensor | None = None,
    num_sequences: int | None = None,
    max_tokens: int | None = None,
    inplace: bool = True,
) -> tuple[Tensor, dict[str, Tensor]]:
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
        loss_type: grpo, bnpo, dapo and dr_grpo (the clipped surrogate; they differ in aggregation), gspo, cispo, sapo,
            or reinforce (no ratio).
        epsilon_low, epsilon_high: the ratio is clipped to [1 - epsilon_low, 1 + epsilon_high]; high defaults to low.
        delta: bound on the ratio where the advantage is negative (dual clip).
        beta, kl_estimator: weight of the KL to the reference: k1, k2 or k3.
        importance_sampling: "token", or "sequence" for one ratio a sequence.
        correction: none, {token,sequence}_{truncate,mask} by exp(old - rollout), cut at correction_max (and, for a
            mask, below correction_min).
        entropy_coef: weight of the entropy bonus.
        aggregation: token_mean, sequence_mean, sequence_sum, fixed_length or sum; None for the loss type's own.
        num_tokens, num_sequences, max_tokens: global normalisers, where the batch is larger than this call's.
        inplace: on a GPU, write the gradient over the logits. Reading the logits afterwards gives the gradient; autograd
            refuses to differentiate through them.

    Returns:
        The scalar loss (float32), and `kernrl.kernels.METRICS` as scalar tensors, means over the active tokens. Nothing
        here waits for the GPU. On a GPU an invalid id makes the loss NaN and `kernrl.kernels.check_ids` raise.

    Raises:
        UsageError: an option or a shape is wrong; on a CPU also an invalid id.
    """
    given = locals()
    if logits.shape[:-1] != action_ids.shape:
        raise UsageError(f"logits {tuple(logits.shape)} must be action_ids' shape {tuple(action_ids.shape)} and V")
    options = {name: given[name] for name in given.keys() - {"logits", "action_ids", "temperature", "inplace"}}
    tokens, config = prepare(action_ids, temperature, options)
    return evaluate_loss(logits, tokens, config, temperature, inplace)
