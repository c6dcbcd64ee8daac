"""A small case of PPO's loss, and what its plain form gives."""

from types import SimpleNamespace

import torch


def ppo_case() -> SimpleNamespace:
    """Log-probs now, before and of the sampler, advantages and a ragged mask; float64 [3, 6]."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    new = draw(3, 6) - 2
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 2 + [0] * 4], dtype=torch.float64)
    return SimpleNamespace(new=new, old=new + 0.3 * draw(3, 6), rollout=new + 0.3 * draw(3, 6), a=draw(3, 6), mask=mask)


def clipped(case, low=0.2, high=0.2):
    ratio = (case.new - case.old).exp()
    return -torch.minimum(ratio * case.a, ratio.clamp(1 - low, 1 + high) * case.a)


def mean(case, each):
    return (each * case.mask).sum() / case.mask.sum()


def skyrl_config(**changes) -> SimpleNamespace:
    """SkyRL's algorithm section, as far as the loss reads it."""
    return SimpleNamespace(
        **{
            "policy_loss_type": "regular", "eps_clip_low": 0.2, "eps_clip_high": 0.28, "clip_ratio_c": 3.0,
            "loss_reduction": "token_mean", "max_seq_len": 10, "use_tis": False, "tis_imp_ratio_cap": 1.1, **changes,
        }
    )  # fmt: skip


def skyrl_correction(**changes) -> SimpleNamespace:
    """Its off_policy_correction."""
    names = ("tis_ratio_type", "sequence_mask_metric", "outlier_token_is_threshold_low", "outlier_token_is_threshold_high",
             "token_mask_is_threshold_low", "token_mask_is_threshold_high")  # fmt: skip
    caps = {"token_tis_ratio_clip_high": 1.1, "sequence_tis_ratio_clip_high": 1.3}
    return SimpleNamespace(**{**dict.fromkeys(names), **caps, **changes})
