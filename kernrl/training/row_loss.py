"""The policy loss of one packed row, as a module: whatever spreads a policy over GPUs sees one forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernrl.algorithms.returns import mismatch_kl
from kernrl.config import ReinforceConfig
from kernrl.kernels import linear_grpo_loss, token_logprobs
from kernrl.policy.attention import packed_kwargs
from kernrl.policy.load import Policy
from kernrl.policy.ranks import Ranks
from kernrl.rollouts.batch import LossRow


class RowLoss(torch.nn.Module):
    """A policy with its loss on top. The head runs inside the fused loss: logits are never held whole."""

    def __init__(self, policy: Policy, config: ReinforceConfig, ranks: Ranks):
        super().__init__()
        self.model = policy.model
        self._policy, self._config, self._ranks = policy, config, ranks
        bf16 = ranks.accelerator.mixed_precision == "bf16"
        self._dtype = torch.bfloat16 if bf16 else policy.head_weight.dtype

    def forward(self, row: LossRow, num_tokens: int | None = None, num_sequences: int | None = None) -> Any:
        """The row's share of a loss over `num_tokens` and `num_sequences`, and its metrics: (scalar, dict).

        Without them, the log-probs of the row's sampled tokens: float32 [N], 0 elsewhere.
        """
        extra = packed_kwargs(row.row.position_ids, row.row.cu_seqlens, row.max_seqlen)
        with self._ranks.autocast():
            hidden = self._policy.base(input_ids=row.row.input_ids, **extra).last_hidden_state[0].to(self._dtype)
        weight = self._policy.head_weight.to(self._dtype)
        if num_tokens is None or num_sequences is None:
            return self._logprobs(hidden, weight, row)
        if row.num_sequences == 0:
            return 0.0 * (hidden.sum() + weight.sum()), {}  # nothing is learnt, and every weight has a gradient
        return self._loss(hidden, weight, row, num_tokens, num_sequences)

    def _loss(
        self, hidden: Tensor, weight: Tensor, row: LossRow, num_tokens: int, num_sequences: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        config = self._config
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
        if row.rollout_logprobs is None:
            return loss, metrics
        old = row.old_logprobs
        if old is None:
            with torch.no_grad():
                old = self._logprobs(hidden, weight, row)
        return loss, metrics | {"mismatch_kl": mismatch_kl(old, row.rollout_logprobs, row.mask)}

    def _logprobs(self, hidden: Tensor, weight: Tensor, row: LossRow) -> Tensor:
        temperature = self._config.temperature
        return token_logprobs(hidden, row.row.targets, temperature=temperature, lm_head_weight=weight, mask=row.mask)[0]
