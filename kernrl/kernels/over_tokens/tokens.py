"""From a trainer's arguments to what the kernels take: shapes checked, aggregation turned into weights.

`Batch` is the arguments as they came; the kernel over tokens reads it as it is. `Tokens` has a weight and a correction for
each token, which the kernels over logits need and the references understand: `expand` makes it in plain PyTorch, `shares`
on a GPU in two launches at most. What holds for every batch with such options is its `Plan`, kept from call to call.
"""

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kernrl.errors import UsageError
from kernrl.kernels.launch import Launch
from kernrl.kernels.over_tokens.token_loss import LossConfig, Tokens, sequence_correction

AGGREGATIONS = {
    "token_mean": "sum over tokens / number of tokens",
    "sequence_mean": "mean over sequences of their token means",
    "sequence_sum": "sum over tokens / number of sequences",
    "fixed_length": "sum over tokens / (number of sequences * max_tokens)",
    "sum": "sum over tokens",
}
PER_SEQUENCE = ("sequence_mean", "sequence_sum", "fixed_length")
DEFAULT_AGGREGATION = {
    "dr_grpo": "fixed_length",
    "gspo": "sequence_mean",
    "gmpo": "sequence_mean",
    "luspo": "sequence_sum",
    "sapo": "sequence_mean",
}
CONFIG_NAMES = frozenset(field.name for field in fields(LossConfig))


@dataclass(slots=True)
class Plan:
    """What to do with a batch, whatever its tensors hold."""

    shape: torch.Size
    tokens_per_advantage: int
    """1, T, or 0 for one a packed sequence."""
    sequences: int
    """0 where they are unknown."""
    tokens_per_sequence: int
    weight_scale: float
    """Each token's share of the aggregate is weight_scale, divided by"""
    given_count: bool
    """the batch's count,"""
    own_count: bool
    """the number of active tokens,"""
    by_length: bool
    """and the number of active tokens of its sequence."""
    by_sequence: bool
    """Whether anything is asked of sequences, so that programs share them out and not tiles of tokens."""
    launches: dict[str, Launch] = field(default_factory=dict)
    """What was launched for a batch like this."""


@dataclass(slots=True)
class Batch:
    """N tokens as a trainer has them: contiguous tensors of one shape, [N] or [B, T], in whatever dtype they came."""

    plan: Plan
    advantages: Tensor
    """One a token, or one a sequence."""
    mask: Tensor | None
    old_logprobs: Tensor | None
    ref_logprobs: Tensor | None
    rollout_logprobs: Tensor | None
    """None where no correction is wanted."""
    cu_seqlens: Tensor | None
    count: Tensor | None
    """A scalar."""
    weight: Tensor | None = None
    """Each token's share where it is known already,"""
    rho: Tensor | None = None
    """and its weight from a correction by sequences."""


def read_batch(
    shape: torch.Size,
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
) -> Batch:
    """The arguments of `grpo_loss` for tokens of `shape`, [N] (packed) or [B, T]. Touches no tensor's contents."""
    if config.beta != 0 and ref_logprobs is None:
        raise UsageError("beta is not 0, so ref_logprobs must be given")
    if config.correction != "none" and rollout_logprobs is None:
        raise UsageError(f"correction={config.correction!r} needs rollout_logprobs")
    for name, value in (
        ("old_logprobs", old_logprobs), ("ref_logprobs", ref_logprobs), ("rollout_logprobs", rollout_logprobs), ("mask", mask)
    ):  # fmt: skip
        if value is not None and value.shape != shape:
            raise UsageError(f"{name} has shape {tuple(value.shape)}; it must have that of action_ids, {tuple(shape)}")
    rows = len(shape) == 2
    if rows and cu_seqlens is not None:
        raise UsageError("cu_seqlens goes with packed action_ids [N], not with [B, T]")
    aggregation = aggregation or DEFAULT_AGGREGATION.get(config.loss_type, "token_mean")
    if aggregation not in AGGREGATIONS:
        raise UsageError(f"aggregation={aggregation!r} is not one of {', '.join(AGGREGATIONS)}")
    sequences = shape[0] if rows else 0 if cu_seqlens is None else cu_seqlens.numel() - 1
    by_sequence = config.by_sequence
    if not rows and cu_seqlens is None and (by_sequence or aggregation in PER_SEQUENCE):
        raise UsageError("anything per sequence (ratio, correction, aggregation) needs cu_seqlens, or action_ids as [B, T]")
    scale, count, own_count = 1.0, None, False
    if aggregation == "token_mean":
        own_count = num_tokens is None and mask is not None
        if isinstance(num_tokens, Tensor):
            count = num_tokens
        elif not own_count:
            scale = 1 / (num_tokens or max(1, shape.numel()))
    elif aggregation != "sum":
        scale = 1 / (num_sequences or sequences or 1)
    if aggregation == "fixed_length":
        if not max_tokens:
            raise UsageError("aggregation='fixed_length' (the default of dr_grpo) needs max_tokens")
        scale /= max_tokens
    tokens_per_advantage, by_length = _tokens_per_advantage(advantages, shape, cu_seqlens), aggregation == "sequence_mean"
    plan = Plan(
        shape=shape,
        tokens_per_advantage=tokens_per_advantage,
        sequences=sequences,
        tokens_per_sequence=shape[1] if rows else 0,
        weight_scale=scale,
        given_count=count is not None,
        own_count=own_count,
        by_length=by_length,
        by_sequence=by_length or tokens_per_advantage == 0 or by_sequence,
    )
    return Batch(
        plan,
        advantages=advantages.contiguous(),
        mask=_contiguous(mask),
        old_logprobs=_contiguous(old_logprobs),
        ref_logprobs=_contiguous(ref_logprobs),
        rollout_logprobs=_contiguous(rollout_logprobs) if config.correction != "none" else None,
        cu_seqlens=_contiguous(cu_seqlens),
        count=count,
    )


def _contiguous(x: Tensor | None) -> Tensor | None:
    return x if x is None or x.is_contiguous() else x.contiguous()


def _tokens_per_advantage(advantages: Tensor, shape: torch.Size, cu_seqlens: Tensor | None) -> int:
    if advantages.shape == shape:
        return 1
    if len(shape) == 2 and advantages.numel() == shape[0]:
        return shape[1]
    if cu_seqlens is not None and advantages.shape == (cu_seqlens.numel() - 1,):
        return 0
    raise UsageError(
        f"advantages has shape {tuple(advantages.shape)}; it must be one a token {tuple(shape)}, or one a sequence"
    )


@lru_cache(maxsize=256)
def _config(options: tuple) -> LossConfig:
    return LossConfig(**dict(options))


def read_options(shape: torch.Size, temperature: float, options: dict) -> tuple[Batch, LossConfig]:
    """`grpo_loss`'s keyword arguments, checked and split into what is known of the tokens and what to compute."""
    if not temperature > 0:
        raise UsageError(f"temperature={temperature} must be above 0")
    config = _config(tuple((name, value) for name, value in options.items() if name in CONFIG_NAMES))
    rest = {name: value for name, value in options.items() if name not in CONFIG_NAMES}
    return read_batch(shape, config, **rest), config


_plans: dict[tuple, tuple[Plan, LossConfig]] = {}
_PLAIN = frozenset({type(None), bool, int, float, str})


def _signature(x: Any) -> Any:
    """What a plan takes from an option: of a tensor, all but its contents."""
    return (x.shape, x.dtype, x.get_device(), x.is_contiguous()) if isinstance(x, Tensor) else x


def read_again(own: tuple, shape: torch.Size, temperature: float, options: dict[str, Any]) -> tuple[Batch, LossConfig]:
    """`read_options`, which would cost the host more than a launch, once for all calls with options like these; `own` is
    what else the caller's launches hang on."""
    key = own, shape, temperature, *options, *[x if x.__class__ in _PLAIN else _signature(x) for x in options.values()]
    known = _plans.get(key)
    if known is None:
        batch, config = read_options(shape, temperature, options)
        if all(x.is_contiguous() for x in options.values() if isinstance(x, Tensor)):
            if len(_plans) >= 256:  # a number of tokens, say, that is another one each time
                _plans.clear()
            _plans[key] = batch.plan, config
        return batch, config
    plan, config = known
    get = options.get
    return Batch(
        plan, options["advantages"], get("mask"), get("old_logprobs"), get("ref_logprobs"),
        None if config.correction == "none" else options["rollout_logprobs"], get("cu_seqlens"),
        options["num_tokens"] if plan.given_count else None,
    ), config  # fmt: skip


def prepare(action_ids: Tensor, temperature: float, options: dict) -> tuple[Tokens, LossConfig]:
    """`read_options`, expanded to a weight for each token of `action_ids`."""
    batch, config = read_options(action_ids.shape, temperature, options)
    return expand(batch, action_ids, config), config


def expand(batch: Batch, action_ids: Tensor, config: LossConfig) -> Tokens:
    """The batch with a weight for each token, in plain PyTorch: float32, or float64 where a CPU's advantages are. No host
    sync."""
    plan, device, given = batch.plan, action_ids.device, batch.advantages
    n = plan.shape.numel()
    dtype = torch.float64 if given.dtype == torch.float64 and device.type == "cpu" else torch.float32

    def flat(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.detach().reshape(n).to(dtype)

    starts = batch.cu_seqlens
    by_sequence = config.by_sequence
    if starts is None and len(plan.shape) == 2 and (by_sequence or plan.by_length):
        if each := plan.tokens_per_sequence:
            starts = torch.arange(0, n + 1, each, device=device)
        else:
            starts = torch.zeros(plan.sequences + 1, dtype=torch.int64, device=device)
    mask = None if batch.mask is None else batch.mask.reshape(n).to(torch.bool)
    advantages, per = given.detach().reshape(-1).to(dtype), plan.tokens_per_advantage
    if not n:
        advantages, per = advantages[:0], 1  # a row without a token may still have one
    elif per == 0:
        assert starts is not None
        advantages, per = advantages.repeat_interleave(starts.diff(), output_size=n), 1
    weight = None
    if plan.by_length:
        assert starts is not None
        active = torch.ones(n, dtype=dtype, device=device) if mask is None else mask.to(dtype)
        lengths = torch.segment_reduce(active, "sum", offsets=starts, unsafe=True, initial=0.0).clamp(min=1)
        weight = (plan.weight_scale / lengths).repeat_interleave(starts.diff(), output_size=n)
    count = batch.count
    if plan.own_count:
        assert mask is not None
        count = mask.sum().clamp(min=1).to(dtype)
    return Tokens(
        ids=action_ids.reshape(n).contiguous(),
        advantages=advantages,
        tokens_per_advantage=per,
        mask=mask,
        weight=weight,
        count=count,
        weight_scale=plan.weight_scale,
        old_logprobs=flat(batch.old_logprobs),
        ref_logprobs=flat(batch.ref_logprobs),
        correction=flat(batch.rollout_logprobs),
        cu_seqlens=starts,
    )


def as_batch(tokens: Tokens, config: LossConfig) -> Batch:
    """The batch of tokens without their sequences, each with its weights."""
    weighted = config.correction.startswith("sequence")
    plan = Plan(
        shape=tokens.ids.shape, tokens_per_advantage=tokens.tokens_per_advantage, sequences=0, tokens_per_sequence=0,
        weight_scale=tokens.weight_scale, given_count=tokens.count is not None, own_count=False, by_length=False,
        by_sequence=config.sequence_ratio and not weighted,
    )  # fmt: skip
    return Batch(
        plan, advantages=tokens.advantages, mask=tokens.mask, old_logprobs=tokens.old_logprobs,
        ref_logprobs=tokens.ref_logprobs, rollout_logprobs=None if weighted else tokens.correction, cu_seqlens=None,
        count=tokens.count, weight=tokens.weight, rho=tokens.correction if weighted else None,
    )  # fmt: skip


def with_sequence_correction(tokens: Tokens, logprobs: Tensor, config: LossConfig) -> Tokens:
    """`tokens` with sequence-level weights in place of the rollout engine's log-probs; `logprobs` stand in for missing
    old ones."""
    if not config.correction.startswith("sequence"):
        return tokens
    assert tokens.correction is not None
    old = logprobs if tokens.old_logprobs is None else tokens.old_logprobs
    return replace(tokens, correction=sequence_correction(old, tokens.correction, tokens, config))
