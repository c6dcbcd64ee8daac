"""Ratio and k3 KL of a policy against its behaviour and reference policies, from both policies' logits."""

import torch
from torch import Tensor

from kernrl.kernels.logprobs import token_logprobs
from kernrl.kernels.token_loss import log_ratio


def ratio_kl(
    policy_logits: Tensor,
    ref_logits: Tensor,
    action_ids: Tensor,
    attention_mask: Tensor,
    old_logprobs: Tensor,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(ratio, kl), each of action_ids' shape, float32, 0 where masked; differentiable in `policy_logits`.

    ratio = exp(l - l_old) and kl = exp(l_ref - l) - (l_ref - l) - 1 (Schulman's k3 estimator of KL(policy || ref)), with l
    the log-prob of the action. Log ratios are held within +-20.

    Args:
        policy_logits, ref_logits: [B, T, V] or [N, V]; no gradient goes to ref_logits.
        action_ids, attention_mask, old_logprobs: [B, T] or [N]. Ids at masked positions may hold anything; others
            outside [0, V) raise `UsageError` on a CPU, and NaN and `kernrl.kernels.check_ids` on a GPU.
    """
    mask = attention_mask.to(torch.bool)
    logp, _ = token_logprobs(policy_logits, action_ids, temperature=temperature, mask=mask)
    with torch.no_grad():
        ref, _ = token_logprobs(ref_logits, action_ids, temperature=temperature, mask=mask)
    ratio = log_ratio(logp, old_logprobs.to(logp.dtype).where(mask, 0.0)).exp()
    d = -log_ratio(logp, ref)
    kl = d.exp() - d - 1
    return ratio.where(mask, 0.0), kl.where(mask, 0.0)
