"""From a trainer's arguments to `Tokens`: shapes checked, floats made float32, aggregation turned into weights."""

from dataclasses import fields, replace

import torch
from torch import Tensor

from kernrl.errors import UsageError
from kernrl.kernels.token_loss import LossConfig, Tokens, sequence_correction

AGGREGATIONS = {
    "token_mean": "sum over tokens / number of tokens",
    "sequence_mean": "mean over sequences of their token means",
    "sequence_sum": "sum over tokens / number of sequences",
    "fixed_length": "sum over tokens / (number of sequences * max_tokens)",
    "sum": "sum over tokens",
}
PER_SEQUENCE = ("sequence_mean", "sequence_sum", "fixed_length")
DEFAULT_AGGREGATION = {"dr_grpo": "fixed_length", "gspo": "sequence_mean", "sapo": "sequence_mean"}


def prepare_tokens(
    action_ids: Tensor,
    config: LossConfig,
    *,
    advantages: Tensor,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    aggregation: str | None = None,
    num_tokens: float | Tensor | None = None,
    num_sequences: int | None = None,
    max_tokens: int | None = None,
) -> Tokens:
    """The arguments of `grpo_loss`, for `action_ids` [N] (packed) or [B, T]."""
    shape, n = action_ids.shape, action_ids.numel()
    dtype = torch.float64 if advantages.dtype == torch.float64 and not advantages.is_cuda else torch.float32
    if config.beta != 0 and ref_logprobs is None:
        raise UsageError("beta is not 0, so ref_logprobs must be given")
    if config.correction != "none" and rollout_logprobs is None:
        raise UsageError(f"correction={config.correction!r} needs rollout_logprobs")

    def flat(name: str, value: Tensor | None) -> Tensor | None:
        if value is None:
            return None
        if value.shape != shape:
            raise UsageError(f"{name} has shape {tuple(value.shape)}; it must have that of action_ids, {tuple(shape)}")
        return value.detach().reshape(n).to(dtype).contiguous()

    if action_ids.dim() == 2 and cu_seqlens is not None:
        raise UsageError("cu_seqlens goes with packed action_ids [N], not with [B, T]")
    aggregation = aggregation or DEFAULT_AGGREGATION.get(config.loss_type, "token_mean")
    if aggregation not in AGGREGATIONS:
        raise UsageError(f"aggregation={aggregation!r} is not one of {', '.join(AGGREGATIONS)}")
    starts = cu_seqlens
    sequences = shape[0] if action_ids.dim() == 2 else None if starts is None else starts.numel() - 1
    by_sequence = config.sequence_ratio or config.correction.startswith("sequence")
    if sequences is None and (by_sequence or aggregation in PER_SEQUENCE):
        raise UsageError("anything per sequence (ratio, correction, aggregation) needs cu_seqlens, or action_ids as [B, T]")
    if action_ids.dim() == 2 and (by_sequence or aggregation == "sequence_mean"):
        starts = torch.arange(0, n + 1, max(1, shape[1]), device=action_ids.device)
    flat_mask = None if mask is None else mask.reshape(n).to(torch.bool).contiguous()
    weight, scale = _weights(flat_mask, n, starts, aggregation, num_tokens, num_sequences or sequences or 1, max_tokens, dtype)
    values, per = _advantages(advantages.detach().to(dtype), shape, cu_seqlens)
    return Tokens(
        ids=action_ids.reshape(n).contiguous(),
        advantages=values,
        tokens_per_advantage=per,
        mask=flat_mask,
        weight=weight,
        weight_scale=scale,
        old_logprobs=flat("old_logprobs", old_logprobs),
        ref_logprobs=flat("ref_logprobs", ref_logprobs),
        correction=flat("rollout_logprobs", rollout_logprobs) if config.correction != "none" else None,
        cu_seqlens=starts,
    )


def prepare(action_ids: Tensor, temperature: float, options: dict) -> tuple[Tokens, LossConfig]:
    """`grpo_loss`'s keyword arguments, checked and split into what is known of the tokens and what to compute."""
    if not temperature > 0:
        raise UsageError(f"temperature={temperature} must be above 0")
    names = {field.name for field in fields(LossConfig)}
    config = LossConfig(**{name: value for name, value in options.items() if name in names})
    rest = {name: value for name, value in options.items() if name not in names}
    return prepare_tokens(action_ids, config, **rest), config


def with_sequence_correction(tokens: Tokens, logprobs: Tensor, config: LossConfig) -> Tokens:
    """`tokens` with sequence-level weights in place of the rollout engine's log-probs; `logprobs` stand in for missing
    old ones."""
    if not config.correction.startswith("sequence"):
        return tokens
    assert tokens.correction is not None
    old = logprobs if tokens.old_logprobs is None else tokens.old_logprobs
    return replace(tokens, correction=sequence_correction(old, tokens.correction, tokens, config))


def _advantages(advantages: Tensor, shape: torch.Size, cu_seqlens: Tensor | None) -> tuple[Tensor, int]:
    """([N] or [B] advantages, tokens that share each)."""
    n = shape.numel()
    if advantages.shape == shape:
        return advantages.reshape(n).contiguous(), 1
    if len(shape) == 2 and advantages.numel() == shape[0]:
        return advantages.reshape(shape[0]).contiguous(), shape[1]
    if cu_seqlens is not None and advantages.shape == (cu_seqlens.numel() - 1,):
        return advantages.repeat_interleave(cu_seqlens.diff(), output_size=n), 1
    raise UsageError(
        f"advantages has shape {tuple(advantages.shape)}; it must be one a token {tuple(shape)}, or one a sequence"
    )


def _weights(
    mask: Tensor | None, n: int, starts: Tensor | None, aggregation: str, num_tokens: float | Tensor | None,
    num_sequences: int, max_tokens: int | None, dtype: torch.dtype,
) -> tuple[Tensor | None, float]:  # fmt: skip
    """(weight [N] or None, weight_scale): each token's share of the aggregate. No host sync."""
    if aggregation == "sum":
        return None, 1.0
    if aggregation == "token_mean":
        if num_tokens is None and mask is not None:
            num_tokens = mask.sum().clamp(min=1)
        if isinstance(num_tokens, Tensor):
            return (1 / num_tokens.to(dtype)).expand(n).contiguous(), 1.0
        return None, 1 / (num_tokens or max(1, n))
    if aggregation == "sequence_sum":
        return None, 1 / num_sequences
    if aggregation == "fixed_length":
        if not max_tokens:
            raise UsageError("aggregation='fixed_length' (the default of dr_grpo) needs max_tokens")
        return None, 1 / (num_sequences * max_tokens)
    assert starts is not None
    active = torch.ones(n, dtype=dtype, device=starts.device) if mask is None else mask.to(dtype)
    lengths = torch.segment_reduce(active, "sum", offsets=starts, unsafe=True, initial=0.0).clamp(min=1)
    return (1 / (lengths * num_sequences)).repeat_interleave(starts.diff(), output_size=n), 1.0
