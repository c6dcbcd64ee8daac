"""kernrl's policy loss under verl's signature.

from kernrl.integrations.verl import register
register()          # in each worker; then: actor_rollout_ref.actor.policy_loss.loss_mode=kernrl_fused

It computes what verl's `vanilla` does, which clips twice (`clip_ratio_c`), in one launch.
"""

from typing import Any

import torch
from torch import Tensor

from kernrl.errors import UsageError
from kernrl.kernels import METRICS, ppo_loss
from kernrl.kernels.ppo import loss_and_metrics

NAME = "kernrl_fused"
AGGREGATIONS = {
    "token-mean": "token_mean", "token-sum": "sum", "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-mean": "sequence_mean", "seq-mean-token-sum-norm": "fixed_length",
}  # fmt: skip
"""verl's `loss_agg_mode` → ours."""


def policy_loss_fused(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """(loss, metrics) as verl's `compute_policy_loss_vanilla` computes them.

    Args:
        old_log_prob, log_prob, advantages, response_mask, rollout_is_weights: [B, T].
        loss_agg_mode: any that verl has.
        config: verl's actor config: clip_ratio, clip_ratio_low, clip_ratio_high, clip_ratio_c and global_batch_info are read.

    Returns:
        The loss, a scalar tensor, and the metrics under verl's names. Tokens whose rollout_is_weights is 0 count there as
        not clipped. verl wants numbers, so this waits for the GPU once.

    Raises:
        UsageError: An unknown loss_agg_mode, or data-parallel ranks whose global batch is not known.
    """
    if loss_agg_mode not in AGGREGATIONS:
        raise UsageError(f"loss_agg_mode={loss_agg_mode!r} is not one of {', '.join(AGGREGATIONS)}")
    options: dict[str, Any] = {
        "aggregation": AGGREGATIONS[loss_agg_mode],
        "epsilon_low": config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low,
        "epsilon_high": config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high,
        "delta": config.get("clip_ratio_c", 3.0),
    }
    options, factor = _normalised(options, response_mask, config.global_batch_info)
    if rollout_is_weights is not None:  # a weight of a token's loss, none of which is negative, is one of its advantage
        advantages = advantages * rollout_is_weights
    if log_prob.is_cuda:
        loss, values = loss_and_metrics(log_prob, old_log_prob, advantages, response_mask, options)
        found = dict(zip(METRICS, values.tolist(), strict=False))  # one wait
    else:
        loss, metrics = ppo_loss(log_prob, old_log_prob, advantages, response_mask, **options)
        found = {name: value.item() for name, value in metrics.items()}
    return loss if factor == 1 else loss * factor, {
        "actor/pg_clipfrac": found["clip_low"] + found["clip_high"],
        "actor/ppo_kl": found["kl_old"] - found["ratio_mean"] + 1,  # verl's is k1, ours k3
        "actor/pg_clipfrac_lower": found["clip_delta"],
    }


def _normalised(options: dict[str, Any], mask: Tensor, batch: Any) -> tuple[dict[str, Any], float]:
    """The options with normalisers of the global batch, and what is left to multiply the loss with.

    A gradient is averaged over the data-parallel ranks afterwards, so that a rank's loss counts as often as there are ranks.
    """
    ranks, aggregation = batch.get("dp_size") or 1, options["aggregation"]
    if aggregation == "sum":
        return options, ranks
    name = "batch_num_tokens" if aggregation == "token_mean" else "global_batch_size"
    total = batch.get(name)
    if total is None and ranks > 1:
        raise UsageError(f"global_batch_info has no {name}, which is needed with {ranks} data-parallel ranks")
    if aggregation == "token_mean":
        return options if total is None else options | {"num_tokens": total / ranks}, 1
    if total is None:  # verl leaves out sequences that are masked as a whole
        total = max(1, int(torch.count_nonzero(mask.sum(-1))))
    options["num_sequences"] = total / ranks
    if aggregation == "fixed_length":
        options["max_tokens"] = batch.get("loss_scale_factor") or mask.shape[-1]
    return options, 1


def register() -> None:
    """Add the loss to verl's registry of policy losses as `kernrl_fused`.

    Raises:
        UsageError: verl is not installed, or too old to have a registry.
    """
    try:
        from verl.trainer.ppo.core_algos import register_policy_loss  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError(
            "verl is not installed, or has no registry of policy losses: install a version that has, such as 0.9"
        ) from error
    register_policy_loss(NAME)(policy_loss_fused)
