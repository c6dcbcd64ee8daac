"""Run by `test_kernels_interpreter.py` with TRITON_INTERPRET=1: the Triton kernels themselves, on a CPU, float32.

Prints one JSON object: for each case the errors against the float64 reference.
"""

import json
import math

import torch

from kernrl.kernels import vocab
from kernrl.kernels.token_loss import METRICS, policy_loss_reference
from kernrl.kernels.token_reduce import reduce_tokens
from kernrl.kernels.tokens import prepare
from kernrl.kernels.vocab import vocab_gradient, vocab_loss, vocab_stats, vocab_stats_reference

torch.set_num_threads(1)
TEMPERATURE = 0.7
vocab._tile = lambda *_, **__: {"BLOCK": 1024, "num_warps": 1}  # so that a short row takes several tiles


def hard_logits(n: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows with p -> 1, p -> 0, a first tile of -inf, and one masked row of NaN with an impossible id."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, size, generator=generator) * 3
    ids = torch.randint(0, size, (n,), generator=generator)
    ids[1] = size - 3
    logits[1, : size - 100] = -math.inf
    logits[2, ids[2]] = 25.0  # 1 - p = 1e-8; float64 itself loses it much nearer 1
    logits[3, ids[3]] = -120.0
    mask = torch.ones(n, dtype=torch.bool)
    mask[4], ids[4], logits[4] = False, -100, math.nan
    return logits, ids, mask


def compare(case: dict) -> dict[str, float]:
    logits, ids, mask = hard_logits(6, 2500)
    n = len(ids)
    exact = logits.double().where(mask[:, None], 0.0).requires_grad_()
    logp, entropy = vocab_stats_reference(exact, ids.where(mask, 0), TEMPERATURE)
    options = {"advantages": torch.linspace(-1, 1, n), "mask": mask, **case}
    for name in ("old_logprobs", "ref_logprobs", "rollout_logprobs"):
        if name in case:
            options[name] = (logp.detach() + case[name] * torch.linspace(-1, 1, n)).float()
    tokens, config = prepare(ids, TEMPERATURE, options)
    doubled = {name: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for name, v in options.items()}
    want, want_metrics = policy_loss_reference(logp, entropy, prepare(ids, TEMPERATURE, doubled)[0], config)
    want.backward()
    assert exact.grad is not None

    out = torch.full_like(logits, 7.0)
    got_logp, got_entropy, _ = vocab_loss(out, logits, tokens, config, TEMPERATURE)
    loss, metrics = reduce_tokens(got_logp, got_entropy, tokens, config)
    return {
        "logp": (got_logp - logp)[mask].abs().max().item(),
        "entropy": (got_entropy - entropy)[mask].abs().max().item(),
        "loss": (abs(loss - want) / want.abs().clamp(min=1)).item(),
        "gradient": ((out - exact.grad).norm(dim=1) / exact.grad.norm(dim=1).clamp(min=1e-30))[mask].max().item(),
        "masked": out[~mask].abs().max().item(),
        "metrics": max(
            (abs(value - want_metrics[name]) / want_metrics[name].abs().clamp(min=1)).item()
            for name, value in zip(METRICS, metrics, strict=True)
        ),
    }


def two_kernels() -> dict[str, float]:
    """`vocab_stats` then `vocab_gradient` for arbitrary g and h."""
    logits, ids, mask = hard_logits(6, 2500)
    exact = logits.double().where(mask[:, None], 0.0).requires_grad_()
    logp, entropy = vocab_stats_reference(exact, ids.where(mask, 0), TEMPERATURE)
    g, h = torch.linspace(-1, 1, 6), torch.linspace(0.5, 1, 6)
    (g * logp + h * entropy)[mask].sum().backward()
    assert exact.grad is not None
    stats = vocab_stats(logits, ids, mask, TEMPERATURE)
    out = torch.full_like(logits, 7.0)
    vocab_gradient(out, logits, ids, mask, stats, g, h, TEMPERATURE)
    error = (out - exact.grad).norm(dim=1) / exact.grad.norm(dim=1).clamp(min=1e-30)
    return {"gradient": error[mask].max().item(), "masked": out[~mask].abs().max().item()}


def unlikely_actions() -> dict[str, float]:
    """Log-probs and entropies of tokens that a sharp distribution would hardly ever draw."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(24, 2500, generator=generator) * 8
    ids = logits.argsort(dim=1)[torch.arange(24), torch.linspace(200, 1200, 24).long()]
    logp, entropy = vocab_stats_reference(logits.double(), ids, TEMPERATURE)
    got_logp, got_entropy, _ = vocab_stats(logits, ids, None, TEMPERATURE)
    return {"logp": (got_logp - logp).abs().max().item(), "entropy": (got_entropy - entropy).abs().max().item()}


def broken_rows() -> dict[str, float]:
    """A logit of NaN anywhere in an active row makes its log-prob NaN, and leaves the row beside it alone."""
    logits, ids, mask = hard_logits(6, 2500)
    logits[0, (ids[0] + 1200) % 2500] = math.nan
    logp, _, _ = vocab_stats(logits, ids, mask, TEMPERATURE)
    return {"masked": float(not logp[0].isnan() or not logp[1:].isfinite().all())}


CASES = {
    "grpo": {"old_logprobs": 0.4},
    "delta, k2": {
        "old_logprobs": 0.6, "delta": 1.3, "epsilon_high": 0.25, "ref_logprobs": 0.3, "beta": 0.15, "kl_estimator": "k2",
    },
    "cispo, mask": {
        "loss_type": "cispo", "old_logprobs": 0.4, "rollout_logprobs": 0.5, "correction": "token_mask", "correction_max": 1.2,
    },
    "sapo, k1": {
        "loss_type": "sapo", "old_logprobs": 0.4, "aggregation": "token_mean", "ref_logprobs": 0.3, "beta": 0.15,
        "kl_estimator": "k1",
    },
    "entropy, k3": {"loss_type": "reinforce", "entropy_coef": 0.1, "ref_logprobs": 0.3, "beta": 0.15},
    "truncate": {"old_logprobs": 0.1, "rollout_logprobs": 0.5, "correction": "token_truncate", "correction_max": 1.2},
}  # fmt: skip

if __name__ == "__main__":
    errors = {name: compare(case) for name, case in CASES.items()}
    errors |= {"two_kernels": two_kernels(), "unlikely": unlikely_actions(), "broken": broken_rows()}
    print(json.dumps(errors))
