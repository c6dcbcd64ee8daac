"""kernrl's policy loss under SkyRL's name and signature.

from kernrl.integrations.skyrl import register
register()          # then: trainer.algorithm.policy_loss_type = "kernrl_fused"

SkyRL comes as two packages. `skyrl_train` (up to 0.3) has a policy loss reduce itself; `skyrl` (0.3 on) scales the
advantages by the reduction beforehand and has it sum. `register` serves whichever is installed.
"""

from typing import Any

from torch import Tensor

from kernrl.errors import UsageError
from kernrl.kernels import METRICS, ppo_loss
from kernrl.kernels.ppo import loss_and_metrics

REDUCTIONS = {"token_mean": "token_mean", "sequence_mean": "sequence_mean", "seq_mean_token_sum_norm": "fixed_length"}
NAME = "kernrl_fused"


def ppo_policy_loss_fused(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    config: Any,
    loss_mask: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
) -> tuple[Tensor, float]:
    """(loss, clip ratio) as `skyrl_train`'s `ppo_policy_loss` computes them, in one launch.

    Args:
        log_probs, old_log_probs, advantages, loss_mask, rollout_logprobs: [B, T].
        config: SkyRL's algorithm section: policy_loss_type (regular, dual_clip or kernrl_fused), eps_clip_low,
            eps_clip_high, clip_ratio_c, loss_reduction, max_seq_len, use_tis and tis_imp_ratio_cap are read.
            kernrl_fused clips as regular does.

    Returns:
        The loss, a scalar tensor, and the share of tokens clipped at 1 - eps_clip_low or 1 + eps_clip_high. SkyRL's
        workers take nothing but numbers as metrics, so this waits for the GPU once, as SkyRL's own losses do.
    """
    if config.loss_reduction not in REDUCTIONS:
        raise UsageError(f"loss_reduction={config.loss_reduction!r} is not one of {', '.join(REDUCTIONS)}")
    options: dict[str, Any] = {"aggregation": REDUCTIONS[config.loss_reduction]}
    if config.loss_reduction == "seq_mean_token_sum_norm":
        options["max_tokens"] = config.max_seq_len
    if config.use_tis:
        options |= {
            "correction": "token_truncate", "correction_max": config.tis_imp_ratio_cap, "rollout_logprobs": rollout_logprobs
        }  # fmt: skip
    return _clipped_loss(log_probs, old_log_probs, advantages, config, loss_mask, options)


def summed_policy_loss_fused(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    config: Any,
    loss_mask: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """(loss, {"clip_ratio"}) as `skyrl`'s `ppo_policy_loss` computes them: a sum over tokens.

    Args:
        config: SkyRL's algorithm section: of its off_policy_correction, tis_ratio_type and the two caps are read; its masks
            are refused.
    """
    options: dict[str, Any] = {"aggregation": "sum"}
    correction = config.off_policy_correction
    masks = ("sequence_mask_metric", "outlier_token_is_threshold_low", "outlier_token_is_threshold_high",
             "token_mask_is_threshold_low", "token_mask_is_threshold_high")  # fmt: skip
    if wanted := [name for name in masks if getattr(correction, name) is not None]:
        raise UsageError(f"off_policy_correction.{wanted[0]} is not one that kernrl computes: leave it out, or use regular")
    level = correction.tis_ratio_type
    if level is not None and rollout_logprobs is not None:
        options |= {
            "correction": f"{level}_truncate", "correction_max": getattr(correction, f"{level}_tis_ratio_clip_high"),
            "rollout_logprobs": rollout_logprobs,
        }  # fmt: skip
    loss, clip_ratio = _clipped_loss(log_probs, old_log_probs, advantages, config, loss_mask, options)
    return loss, {"clip_ratio": clip_ratio}


def _clipped_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, config: Any, loss_mask: Tensor | None, options: dict
) -> tuple[Tensor, float]:
    kind = config.policy_loss_type
    if kind not in ("regular", "dual_clip", NAME):
        raise UsageError(f"policy_loss_type={kind!r} is not one that kernrl computes: use regular, dual_clip or {NAME}")
    options |= {"epsilon_low": config.eps_clip_low, "epsilon_high": config.eps_clip_high}
    options["delta"] = config.clip_ratio_c if kind == "dual_clip" else None
    if not log_probs.is_cuda:
        loss, metrics = ppo_loss(log_probs, old_log_probs, advantages, loss_mask, **options)
        return loss, (metrics["clip_low"] + metrics["clip_high"]).item()
    loss, values = loss_and_metrics(log_probs, old_log_probs, advantages, loss_mask, options)
    low = METRICS.index("clip_low")
    return loss, sum(values[low : low + 2].tolist())  # one wait


def register() -> None:
    """Add the loss to SkyRL's registry of policy losses as `kernrl_fused`.

    Raises:
        UsageError: neither `skyrl` nor `skyrl_train` is installed.
    """
    try:
        from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry  # pyright: ignore[reportMissingImports]

        loss = summed_policy_loss_fused
    except ModuleNotFoundError:
        try:
            from skyrl_train.utils.ppo_utils import PolicyLossRegistry  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise UsageError("SkyRL is not installed: install skyrl, or skyrl-train up to 0.3") from error
        loss = ppo_policy_loss_fused
    PolicyLossRegistry.register(NAME, loss)
