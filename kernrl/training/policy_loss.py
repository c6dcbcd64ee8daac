"""The policy loss of one packed row, and the log-probs that it compares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernrl.config import ReinforceConfig
from kernrl.kernels import linear_grpo_loss, token_logprobs
from kernrl.policy.attention import packed_kwargs
from kernrl.policy.load import Policy, load_policy
from kernrl.policy.ranks import Ranks
from kernrl.rollouts.batch import LossRow

AVERAGED = (
    "ratio_mean", "clip_low", "clip_high", "clip_delta", "kl_old", "kl_ref",
    "entropy", "correction_mean", "correction_cut", "ess", "mismatch_kl",
)  # fmt: skip
"""Metrics of a row that are means over its tokens."""


class PolicyLoss(torch.nn.Module):
    """A policy with its loss on top: one module with one forward, for DDP and FSDP2 to wrap.

    The head runs inside the fused loss: the logits of a row are never all in memory.
    """

    def __init__(self, policy: Policy, config: ReinforceConfig, ranks: Ranks):
        super().__init__()
        self.model = policy.model
        self._policy, self._config, self._ranks = policy, config, ranks
        bf16 = ranks.accelerator.mixed_precision == "bf16"
        self._dtype = torch.bfloat16 if bf16 else policy.head_weight.dtype

    def forward(self, row: LossRow, num_tokens: int, num_sequences: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The row's share of a loss over `num_tokens` and `num_sequences`, and its metrics (scalars).

        An idle row gives a loss of 0 with a gradient of 0 for every weight, and no metrics.
        """
        config = self._config
        hidden, weight = self._hidden(row), self._head_weight()
        if row.num_sequences == 0:
            return 0.0 * (hidden.sum() + weight.sum()), {}
        loss, metrics = linear_grpo_loss(
            hidden,
            weight,
            row.row.targets,
            advantages=row.row.weights,
            old_logprobs=row.old_logprobs,
            ref_logprobs=row.ref_logprobs,
            rollout_logprobs=row.rollout_logprobs,
            mask=row.mask,
            cu_seqlens=row.row.cu_seqlens,
            temperature=config.temperature,
            loss_type=config.loss,
            epsilon_low=config.epsilon_low,
            epsilon_high=config.epsilon_high,
            delta=config.delta,
            beta=config.beta,
            kl_estimator=config.kl_estimator,
            correction=config.correction if row.rollout_logprobs is not None else "none",
            correction_max=config.correction_max,
            correction_min=config.correction_min,
            entropy_coef=config.entropy_coef,
            num_tokens=num_tokens,
            num_sequences=num_sequences,
            max_tokens=config.max_tokens,
        )
        if not config.beta:
            metrics.pop("kl_ref", None)
        if row.rollout_logprobs is not None:
            old = row.old_logprobs
            if old is None:
                with torch.no_grad():
                    old = self._token_logprobs(hidden, weight, row)
            metrics["mismatch_kl"] = mismatch_kl(old, row.rollout_logprobs, row.mask)
        return loss, metrics

    @torch.no_grad()
    def logprobs(self, row: LossRow) -> Tensor:
        """Log-probs of the row's sampled tokens under the policy as it is: float32 [N], 0 elsewhere."""
        return self._token_logprobs(self._hidden(row), self._head_weight(), row)

    def _hidden(self, row: LossRow) -> Tensor:
        """[N, H]: the decoder's last hidden states."""
        extra = packed_kwargs(row.row.position_ids, row.row.cu_seqlens, row.max_seqlen)
        with self._ranks.autocast():
            return self._policy.base(input_ids=row.row.input_ids, **extra).last_hidden_state[0].to(self._dtype)

    def _head_weight(self) -> Tensor:
        """[V, H]"""
        return self._policy.head_weight.to(self._dtype)

    def _token_logprobs(self, hidden: Tensor, weight: Tensor, row: LossRow) -> Tensor:
        temperature = self._config.temperature
        return token_logprobs(hidden, row.row.targets, temperature=temperature, lm_head_weight=weight, mask=row.mask)[0]


def reference_logprobs(policy_loss: PolicyLoss, config: ReinforceConfig, ranks: Ranks) -> Callable[[LossRow], Tensor]:
    """A function that gives log-probs under the model that training started from, as `PolicyLoss.logprobs` does.

    Under LoRA that model is the policy without its adapters. Otherwise it is loaded, frozen and whole, on every rank.
    """
    if config.lora:
        model: Any = policy_loss.model

        def without_adapters(row: LossRow) -> Tensor:
            with model.disable_adapter():
                return policy_loss.logprobs(row)

        return without_adapters
    device = ranks.accelerator.device
    reference = load_policy(config.model, dtype="bf16" if device.type == "cuda" else "fp32", revision=config.revision)
    reference.model.requires_grad_(False).eval().to(device)  # pyright: ignore[reportArgumentType]
    return PolicyLoss(reference, config, ranks).logprobs


def mismatch_kl(trainer: Tensor, sampler: Tensor, mask: Tensor) -> Tensor:
    """How far the trainer is from the sampler that wrote the tokens: E[r − 1 − log r] with r their probability ratio.

    Schulman's k3 estimate of KL(sampler ‖ trainer), in nats a token: 0 where both are the same, never below.

    Args:
        trainer, sampler: log-probs of the sampled tokens, float32 [N].
        mask: bool [N], which positions count.
    """
    log_ratio = (trainer - sampler)[mask]
    return (torch.expm1(log_ratio) - log_ratio).mean()


class UpdateMetrics:
    """Loss and metrics of a step's updates, as means over tokens and updates; of `ratio_max`, the greatest.

    Args:
        updates: optimizer steps that are averaged over.
    """

    def __init__(self, updates: int, device: torch.device):
        self._updates = updates
        self._totals: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=device))

    def add_row(self, loss: Tensor, metrics: dict[str, Tensor], token_share: float) -> None:
        """Add a row that holds `token_share` of its update's tokens. `loss` is the row's share of the update's loss."""
        totals = self._totals
        totals["loss"] += loss.detach() / self._updates
        for name in metrics.keys() & set(AVERAGED):
            totals[name] += metrics[name] * (token_share / self._updates)
        if "ratio_max" in metrics:
            totals["ratio_max"] = torch.maximum(totals["ratio_max"], metrics["ratio_max"])

    def add_update(self, grad_norm: Tensor) -> None:
        """Add an optimizer step."""
        self._totals["grad_norm"] += grad_norm / self._updates

    def over_ranks(self, ranks: Ranks) -> dict[str, float]:
        """The metrics of all ranks together, on every rank."""
        totals = self._totals
        if ranks.size == 1:
            return {name: value.item() for name, value in totals.items()}
        alike = {"grad_norm", "ratio_max"}  # equal on all ranks, or a maximum; the others are sums over rows
        names = ranks.tell(sorted(totals))  # rank 0 always has a row to learn from, so it has them all
        sums = ranks.sum(torch.stack([totals[n] if n not in alike else totals[n] * 0 for n in names]))
        most = ranks.max(torch.stack([totals[n] for n in names]))
        values = zip(names, sums.tolist(), most.tolist(), strict=True)
        return {name: highest if name in alike else total for name, total, highest in values}
