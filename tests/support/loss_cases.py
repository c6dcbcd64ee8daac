"""Cases of the losses for the tests on a GPU: batches, options, and float64 references."""

import torch

from kernrl.kernels import grpo_loss
from kernrl.kernels.grpo import grpo_loss_reference
from kernrl.kernels.over_tokens.tokens import prepare

# bfloat16 keeps 8 bits: rounding a gradient once leaves a relative L2 error of at most 2^-8.4. float16 keeps 11, but most
# of a row's gradients are below its normal range.
ROUNDING = {torch.bfloat16: 2**-8.4, torch.float16: 1e-3, torch.float32: 5e-6}
# The vocabularies of the models in use, some that are multiples of nothing, and two small enough for the plain
# kernel.
VOCABS = [32768, 151936, 128256, 32000, 65536, 50257, 4096, 4099, 131069, 201088, 248319, 256000, 262144]

VARIANTS = {
    "plain": {},
    "clip": {"old": True, "epsilon_low": 0.1, "epsilon_high": 0.3},
    "delta": {"old": True, "delta": 1.5},
    "kl_k1": {"old": True, "ref": True, "beta": 0.1, "kl_estimator": "k1"},
    "kl_k2": {"old": True, "ref": True, "beta": 0.1, "kl_estimator": "k2"},
    "kl_k3": {"old": True, "ref": True, "beta": 0.1},
    "cispo": {"old": True, "loss_type": "cispo"},
    "sapo": {"old": True, "loss_type": "sapo"},
    "gspo": {"old": True, "loss_type": "gspo"},
    "luspo": {"old": True, "loss_type": "luspo", "epsilon_high": 0.02},
    "vespo": {"old": True, "loss_type": "vespo"},
    "gmpo": {"old": True, "loss_type": "gmpo", "epsilon_high": 0.1},
    "reinforce": {"loss_type": "reinforce"},
    "entropy": {"old": True, "entropy_coef": 0.05},
    "tis": {"old": True, "rollout": True, "correction": "token_truncate", "correction_max": 1.1},
    "mis": {"old": True, "rollout": True, "correction": "token_mask", "correction_max": 1.2, "correction_min": 0.8},
    "sequence_tis": {"old": True, "rollout": True, "correction": "sequence_truncate"},
    "sequence_mis_on_policy": {"rollout": True, "correction": "sequence_mask"},
    "dr_grpo": {"old": True, "loss_type": "dr_grpo", "max_tokens": 64},
    "sequence_mean": {"old": True, "aggregation": "sequence_mean"},
    "global_count": {"old": True, "num_tokens": 1000.0},
    "together": {
        "old": True, "ref": True, "rollout": True, "delta": 1.5, "beta": 0.1, "kl_estimator": "k2",
        "correction": "sequence_truncate",
    },
}  # fmt: skip


def batch(b, t, vocab, dtype=torch.bfloat16, seed=0, scale=2.0):
    """Logits, ids, and log-probs near the policy's own, so that some ratios clip and most do not."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, device="cuda")

    logits = (draw(b, t, vocab) * scale).to(dtype)
    ids = torch.randint(0, vocab, (b, t), generator=generator, device="cuda")
    logp = (logits[..., :].float() / 0.8).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    mask = torch.rand(b, t, generator=generator, device="cuda") < 0.8
    noisy = {name: logp + 0.2 * draw(b, t) for name in ("old", "ref", "rollout")}
    return logits, ids, mask, draw(b), noisy


def options_of(variant, mask, advantages, noisy):
    options = {name: value for name, value in variant.items() if name not in noisy}
    given = {f"{name}_logprobs": noisy[name] for name in noisy if variant.get(name)}
    return {**options, **given, "mask": mask, "advantages": advantages}


def reference(logits, ids, options, temperature=0.8):
    """(loss, metrics, gradient) in float64."""
    tokens, config = prepare(ids, temperature, options)
    leaf = logits.detach().double().requires_grad_()
    loss, metrics = grpo_loss_reference(leaf.view(-1, leaf.shape[-1]), tokens, config, temperature)
    loss.backward()
    return loss.detach(), metrics, leaf.grad


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30)).item()


def run(logits, ids, options, inplace=True, temperature=0.8):
    leaf = logits.clone().requires_grad_()
    loss, metrics = grpo_loss(leaf * 1, ids, temperature=temperature, inplace=inplace, **options)
    loss.backward()
    return loss.detach(), metrics, leaf.grad


def linear_case(n=96, width=64, vocab=5003, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(1)
    hidden = torch.randn(n, width, generator=generator, device="cuda", dtype=dtype)
    weight = torch.randn(vocab, width, generator=generator, device="cuda", dtype=dtype) * 0.3
    return hidden, weight, torch.randint(0, vocab, (n,), generator=generator, device="cuda"), generator
