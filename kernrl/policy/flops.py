"""Floating-point operations that a training step needs: the numerator of MFU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernrl.policy.four_bit import weights_in
from kernrl.policy.load import Policy


@dataclass(frozen=True, slots=True)
class TrainingFlops:
    """Operations of one forward and backward pass, each multiply-add counted as two.

    As in appendix B of Chowdhery et al. 2022 (PaLM): 6 for every weight of a matrix and every token (2 forward, 2 for the
    inputs' gradient, 2 for the weights', which frozen weights do not have), and 12 · layers · heads · head_dim for
    every pair of a query and a key that it attends to. Stricter in three ways: padding does not count, the head counts only
    where a target is, and causal attention counts half a square. Recomputation does not count.
    """

    per_token: float
    per_target: float
    per_pair: float

    @classmethod
    def of(cls, policy: Policy) -> TrainingFlops:
        """The counts of a policy, LoRA adapters included."""
        config = policy.model.config
        embedding: Any = policy.model.get_input_embeddings()
        table, head = embedding.weight, policy.head_weight
        matrices = [p for p in policy.model.parameters() if p.dim() >= 2 and p is not table and p is not head]
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(
            per_token=float(sum(weights_in(p) * (6 if p.requires_grad else 4) for p in matrices)),
            per_target=float(head.numel() * (6 if head.requires_grad else 4)),
            per_pair=12.0 * config.num_hidden_layers * heads * head_dim,
        )

    def total(self, *, tokens: int, targets: int, pairs: int) -> float:
        """FLOPs of a step on so many real tokens, targets, and (query, key) pairs within documents."""
        return self.per_token * tokens + self.per_target * targets + self.per_pair * pairs
