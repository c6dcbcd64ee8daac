"""The fused losses: trusted Triton kernels, each with its plain PyTorch reference, which is also what runs on a CPU."""

from kernrl.kernels.advantages import group_advantages
from kernrl.kernels.grpo import grpo_loss
from kernrl.kernels.linear import linear_cross_entropy, linear_grpo_loss
from kernrl.kernels.logprobs import token_logprobs
from kernrl.kernels.over_logits.id_check import check_ids
from kernrl.kernels.over_tokens.token_loss import METRICS
from kernrl.kernels.ppo import ppo_loss
from kernrl.kernels.ratio_kl import ratio_kl

__all__ = [
    "METRICS",
    "check_ids",
    "group_advantages",
    "grpo_loss",
    "linear_cross_entropy",
    "linear_grpo_loss",
    "ppo_loss",
    "ratio_kl",
    "token_logprobs",
]
