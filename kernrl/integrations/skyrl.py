"""kernrl's policy loss under SkyRL's name and signature.

from kernrl.integrations.skyrl import register
register()          # then: trainer.algorithm.policy_loss_type = "kernrl_fused"
"""

from typing import Any

from torch import Tensor

from kernrl.errors import UsageError
from kernrl.kernels import ppo_loss

REDUCTIONS = {"token_mean": "token_mean", "sequence_mean": "sequence_mean", "seq_mean_token_sum_norm": "fixed_length"}
NAME = "kernrl_fused"


def ppo_policy_loss_fused(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    config: Any,
    loss_mask: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(loss, clip ratio) as SkyRL's `ppo_policy_loss` computes them, in one launch and with no wait for the GPU.

    Args:
        log_probs, old_log_probs, advantages, loss_mask, rollout_logprobs: [B, T].
        config: SkyRL's algorithm section: policy_loss_type (regular, dual_clip or kernrl_fused), eps_clip_low,
            eps_clip_high, clip_ratio_c, loss_reduction, max_seq_len, use_tis and tis_imp_ratio_cap are read.
            kernrl_fused clips as regular does.

    Returns:
        Both as scalar tensors; the clip ratio counts every clipped token, dual clip included.
    """
    kind = config.policy_loss_type
    if kind not in ("regular", "dual_clip", NAME):
        raise UsageError(f"policy_loss_type={kind!r} is not one that kernrl computes: use regular, dual_clip or {NAME}")
    if config.loss_reduction not in REDUCTIONS:
        raise UsageError(f"loss_reduction={config.loss_reduction!r} is not one of {', '.join(REDUCTIONS)}")
    use_tis = config.use_tis
    loss, metrics = ppo_loss(
        log_probs,
        old_log_probs,
        advantages,
        loss_mask,
        epsilon_low=config.eps_clip_low,
        epsilon_high=config.eps_clip_high,
        delta=config.clip_ratio_c if kind == "dual_clip" else None,
        aggregation=REDUCTIONS[config.loss_reduction],
        max_tokens=config.max_seq_len if config.loss_reduction == "seq_mean_token_sum_norm" else None,
        correction="token_truncate" if use_tis else "none",
        correction_max=config.tis_imp_ratio_cap if use_tis else 2.0,
        rollout_logprobs=rollout_logprobs if use_tis else None,
    )
    return loss, metrics["clip_ratio"]


def register() -> None:
    """Add the loss to SkyRL's registry of policy losses as `kernrl_fused`."""
    from skyrl_train.utils.ppo_utils import PolicyLossRegistry  # pyright: ignore[reportMissingImports]

    PolicyLossRegistry.register(NAME, ppo_policy_loss_fused)
