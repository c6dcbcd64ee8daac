"""The policy loss of one token: every variant in plain PyTorch; `token_math` has the same text in Triton.

With l = log pi(a), l_old and l_ref the log-probs of the behaviour and reference policies, A the advantage, w the token's
share of the aggregate, rho the correction for a rollout engine that is not the trainer, H the entropy:

    loss = w * (rho * policy(l) + beta * kl(l) - entropy_coef * H)

A vocabulary kernel needs of this only g = d loss / d l and h = d loss / d H.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from kernrl.errors import UsageError

LOSS_TYPES = {
    "grpo": 0, "bnpo": 0, "dapo": 0, "dr_grpo": 0, "gspo": 0, "luspo": 0, "cispo": 1, "sapo": 2, "reinforce": 3, "vespo": 4,
    "gmpo": 5,
}  # fmt: skip
SEQUENCE_LOSSES = ("gspo", "luspo", "vespo", "gmpo")
KL_ESTIMATORS = {"k1": 1, "k2": 2, "k3": 3}
CORRECTIONS = {"none": 0, "token_truncate": 1, "token_mask": 2, "sequence_truncate": 3, "sequence_mask": 3}
LOG_RATIO_LIMIT = 20.0  # exp(20) = 5e8: beyond it a ratio says nothing, and inf * 0 would make NaN
METRICS: tuple[str, ...] = (
    "tokens",
    "ratio_mean",
    "ratio_max",
    "clip_low",
    "clip_high",
    "clip_delta",
    "kl_old",
    "kl_ref",
    "entropy",
    "correction_mean",
    "correction_cut",
    "ess",
)


@dataclass(frozen=True, eq=False)
class LossConfig:
    """What to compute; `kernrl.kernels.grpo_loss` documents the fields."""

    loss_type: str = "grpo"
    epsilon_low: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    beta: float = 0.0
    kl_estimator: str = "k3"
    importance_sampling: str = "token"
    correction: str = "none"
    correction_max: float = 2.0
    correction_min: float = 0.0
    entropy_coef: float = 0.0
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_power_pos: float = 2.0
    vespo_power_neg: float = 3.0
    vespo_decay_pos: float = 3.0
    vespo_decay_neg: float = 2.0

    def __post_init__(self):
        for name, value, known in (
            ("loss_type", self.loss_type, LOSS_TYPES),
            ("kl_estimator", self.kl_estimator, KL_ESTIMATORS),
            ("correction", self.correction, CORRECTIONS),
            ("importance_sampling", self.importance_sampling, ("token", "sequence")),
        ):
            if value not in known:
                raise UsageError(f"{name}={value!r} is not one of {', '.join(known)}")
        if not 0 <= self.epsilon_low < 1:
            raise UsageError(f"epsilon_low={self.epsilon_low} must be in [0, 1)")
        if self.delta is not None and self.delta <= 1 + self.clip_high:
            raise UsageError(f"delta={self.delta} must be above 1 + epsilon_high = {1 + self.clip_high}")
        if self.correction_max < self.correction_min:
            raise UsageError(f"correction_max={self.correction_max} is below correction_min={self.correction_min}")
        if self.loss_type == "vespo":
            self._check_vespo()

    def _check_vespo(self):
        if self.correction != "none":
            raise UsageError("vespo takes no correction: give it the rollout engine's log-probs as old_logprobs")
        for name in ("vespo_power_pos", "vespo_power_neg", "vespo_decay_pos", "vespo_decay_neg"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name}={getattr(self, name)} must be above 0")

    @property
    def clip_high(self) -> float:
        return self.epsilon_low if self.epsilon_high is None else self.epsilon_high

    @cached_property
    def scalars(self) -> tuple[float, ...]:
        """The numbers that `token_math.token_loss` takes, in its order. vespo's take the places of the clip's and sapo's, so
        that no launch has more arguments."""
        delta = math.inf if self.delta is None else self.delta
        clip = 1 - self.epsilon_low, 1 + self.clip_high
        shape = self.sapo_temperature_pos, self.sapo_temperature_neg
        if self.loss_type == "gmpo":
            clip = -self.epsilon_low, self.clip_high
        elif self.loss_type == "vespo":
            clip = self.vespo_decay_pos, self.vespo_decay_neg
            shape = self.vespo_power_pos, self.vespo_power_neg
        return (*clip, delta, self.beta, self.correction_min, self.correction_max, self.entropy_coef, *shape)

    @cached_property
    def constants(self) -> dict[str, int]:
        """What `token_math.token_loss` is compiled for."""
        return {
            "LOSS": LOSS_TYPES[self.loss_type],
            "KL": KL_ESTIMATORS[self.kl_estimator],
            "CORRECTION": CORRECTIONS[self.correction],
        }

    @cached_property
    def by_sequence(self) -> bool:
        """True where a token's gradient depends on its sequence's other log-probs, or its correction does."""
        return self.sequence_ratio or self.correction.startswith("sequence")

    @cached_property
    def sequence_ratio(self) -> bool:
        """True where a token's ratio is its sequence's: their geometric mean, or vespo's product."""
        return self.loss_type in SEQUENCE_LOSSES or self.importance_sampling == "sequence"


@dataclass(slots=True)
class Tokens:
    """What is known of N tokens before the policy is evaluated. All tensors on one device; floats are float32
    (float64 is kept on a CPU)."""

    ids: Tensor
    """[N] int64."""
    advantages: Tensor
    """[N], or [N / tokens_per_advantage]."""
    tokens_per_advantage: int = 1
    mask: Tensor | None = None
    """[N] bool, True where the token counts."""
    weight: Tensor | None = None
    """[N], the token's share of the aggregate; None for `weight_scale` alone."""
    count: Tensor | None = None
    """A scalar that divides every share."""
    weight_scale: float = 1.0
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    correction: Tensor | None = None
    """[N]: the rollout engine's log-probs for a token-level correction, the weights rho for a sequence-level one."""
    cu_seqlens: Tensor | None = None
    """[S + 1], where each sequence starts; None where nothing is asked of sequences."""

    def __getitem__(self, rows: slice | Tensor) -> "Tokens":
        """The tokens of `rows`, without their sequences."""
        expanded = self.advantages
        if self.tokens_per_advantage > 1:
            expanded = expanded.repeat_interleave(self.tokens_per_advantage, output_size=self.ids.numel())
        names = ("mask", "weight", "old_logprobs", "ref_logprobs", "correction")
        taken = {name: value[rows] for name in names if (value := getattr(self, name)) is not None}
        return replace(self, ids=self.ids[rows], advantages=expanded[rows], tokens_per_advantage=1, cu_seqlens=None, **taken)


def log_ratio(new: Tensor, old: Tensor) -> Tensor:
    """new - old within +-LOG_RATIO_LIMIT (no gradient beyond), 0 where both are the same infinity."""
    limit = LOG_RATIO_LIMIT
    # inf - inf stays out of the graph: its gradient would be NaN however it is masked afterwards.
    both = old.isinf() & (new.detach() == old)
    return (new.where(~both, 0.0) - old.where(~both, 0.0)).clamp(-limit, limit)


def sequence_sums(values: Tensor, mask: Tensor | None, cu_seqlens: Tensor) -> Tensor:
    """[N] values to [N]: each token gets the sum over its sequence's active tokens."""
    values = values if mask is None else values.where(mask, 0.0)
    sums = torch.segment_reduce(values, "sum", offsets=cu_seqlens, unsafe=True, initial=0.0)
    return sums.repeat_interleave(cu_seqlens.diff(), output_size=values.numel())


def sequence_means(values: Tensor, mask: Tensor | None, cu_seqlens: Tensor) -> Tensor:
    """[N] values to [N]: each token gets the mean over its sequence's active tokens."""
    counts = sequence_sums(torch.ones_like(values), mask, cu_seqlens)
    return sequence_sums(values, mask, cu_seqlens) / counts.clamp(min=1)


def _log_ratios(own: Tensor, advantage: Tensor, mask: Tensor, tokens: Tokens, config: LossConfig) -> Tensor:
    """[N] log ratios for the policy term, given each token's own."""
    if not config.sequence_ratio:
        return own
    assert tokens.cu_seqlens is not None, "a sequence ratio needs cu_seqlens"
    if config.loss_type == "vespo":
        return sequence_sums(own, mask, tokens.cu_seqlens).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if config.loss_type == "gmpo":
        own = torch.where(advantage > 0, own.clamp(max=config.clip_high), own.clamp(min=-config.epsilon_low))
    return sequence_means(own, mask, tokens.cu_seqlens)


def _policy_term(
    logp: Tensor, own: Tensor, log_r: Tensor, advantage: Tensor, config: LossConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(policy term, clipped low, clipped high, beyond delta), all [N]; `own` are the tokens' own log ratios."""
    ratio = log_r.exp()
    low = high = beyond = torch.zeros_like(advantage, dtype=torch.bool)
    if LOSS_TYPES[config.loss_type] == 0:
        delta = math.inf if config.delta is None else config.delta
        clipped = ratio.clamp(1 - config.epsilon_low, 1 + config.clip_high)
        policy = -torch.minimum(ratio.clamp(max=delta) * advantage, clipped * advantage)
        low = (ratio < 1 - config.epsilon_low) & (advantage < 0)
        high = (ratio > 1 + config.clip_high) & (advantage > 0)
        beyond = (ratio > delta) & (advantage < 0)
    elif config.loss_type == "cispo":
        policy = -ratio.detach().clamp(max=1 + config.clip_high) * advantage * logp
        high = ratio > 1 + config.clip_high
    elif config.loss_type == "sapo":
        steepness = torch.where(advantage > 0, config.sapo_temperature_pos, config.sapo_temperature_neg)
        policy = -advantage * 4 / steepness * torch.sigmoid(steepness * (ratio - 1))
    elif config.loss_type == "vespo":
        power = torch.where(advantage >= 0, config.vespo_power_pos, config.vespo_power_neg)
        decay = torch.where(advantage >= 0, config.vespo_decay_pos, config.vespo_decay_neg)
        policy = -(decay + power * log_r - decay * ratio).exp().detach() * advantage * logp
    elif config.loss_type == "gmpo":
        policy = -advantage * ratio
        low = (own < -config.epsilon_low) & (advantage < 0)
        high = (own > config.clip_high) & (advantage > 0)
    else:
        policy = -advantage * logp
    return policy.where(advantage != 0, 0.0), low, high, beyond


def policy_loss_reference(
    logprobs: Tensor, entropy: Tensor, tokens: Tokens, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The aggregate loss and metrics, differentiable in `logprobs` [N] and `entropy` [N]. Plain PyTorch, any dtype."""
    mask = torch.ones_like(tokens.ids, dtype=torch.bool) if tokens.mask is None else tokens.mask
    logp, entropy = logprobs.where(mask, 0.0), entropy.where(mask, 0.0)
    old = logp.detach() if tokens.old_logprobs is None else tokens.old_logprobs.where(mask, 0.0)
    advantage = tokens.advantages
    if tokens.tokens_per_advantage > 1:
        advantage = advantage.repeat_interleave(tokens.tokens_per_advantage)
    advantage = advantage.where(mask, 0.0)  # NaN there would reach a sequence's other tokens through their ratio
    own = log_ratio(logp, old)
    log_r = _log_ratios(own, advantage, mask, tokens, config)
    ratio = log_r.exp()
    policy, low, high, beyond = _policy_term(logp, own, log_r, advantage, config)

    rho, cut = correction_weights(old if tokens.old_logprobs is not None else logp.detach(), tokens.correction, config)
    kl = torch.zeros_like(logp)
    if tokens.ref_logprobs is not None:
        d = -log_ratio(logp, tokens.ref_logprobs.where(mask, 0.0))
        kl = {"k1": -d, "k2": d * d / 2, "k3": d.exp() - d - 1}[config.kl_estimator]
    weight = mask * (tokens.weight_scale if tokens.weight is None else tokens.weight)
    if tokens.count is not None:
        weight = weight / tokens.count
    per_token = rho * policy + config.beta * kl - config.entropy_coef * entropy
    loss = (weight * per_token.where(mask, 0.0)).sum()

    count = mask.sum().clamp(min=1)
    mean = lambda x: x.detach().to(loss.dtype).where(mask, 0.0).sum() / count  # noqa: E731
    omega = (ratio.detach() * rho).where(mask, 0.0)
    metrics = {
        "tokens": mask.sum().to(loss.dtype),
        "ratio_mean": mean(ratio),
        "ratio_max": torch.cat([ratio.detach().where(mask, 0.0), ratio.new_zeros(1)]).amax(),  # there may be no token
        "clip_low": mean(low),
        "clip_high": mean(high),
        "clip_delta": mean(beyond),
        "kl_old": mean(ratio - 1 - log_r),
        "kl_ref": mean(kl),
        "entropy": mean(entropy),
        "correction_mean": mean(rho * torch.ones_like(logp)),
        "correction_cut": mean(cut),
        "ess": omega.sum() ** 2 / (count * (omega * omega).sum()).clamp(min=1e-30),
    }
    return loss, metrics


def correction_weights(old: Tensor, correction: Tensor | None, config: LossConfig) -> tuple[Tensor, Tensor]:
    """rho [N] and whether it was cut [N], for tokens whose trainer-side log-probs are `old`."""
    kind = CORRECTIONS[config.correction]
    if kind == 0 or correction is None:
        return torch.ones_like(old), torch.zeros_like(old, dtype=torch.bool)
    if kind == 3:
        return correction, correction == 0
    rho = log_ratio(old, correction).exp()
    return _cut(rho, truncate=kind == 1, config=config)


def _cut(rho: Tensor, truncate: bool, config: LossConfig) -> tuple[Tensor, Tensor]:
    if truncate:
        return rho.clamp(max=config.correction_max), rho > config.correction_max
    cut = (rho > config.correction_max) | (rho < config.correction_min)
    return rho.where(~cut, 0.0), cut


def sequence_correction(old: Tensor, rollout: Tensor, tokens: Tokens, config: LossConfig) -> Tensor:
    """[N] weights rho from the whole sequence's ratio exp(sum(old - rollout)), truncated or masked."""
    assert tokens.cu_seqlens is not None, "a sequence-level correction needs cu_seqlens"
    total = sequence_sums(log_ratio(old, rollout), tokens.mask, tokens.cu_seqlens).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return _cut(total.exp(), truncate=config.correction == "sequence_truncate", config=config)[0]
