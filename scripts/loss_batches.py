"""What the parts of `bench_loss.py` share: batches, losses as a trainer writes them, and the products of a linear layer."""

import functools
import time
from collections.abc import Callable

import torch

VOCAB = 151936
SEQUENCES = 8
WARM_S = 0.05
TEMPERATURE, BETA, EPSILON = 0.9, 0.04, 0.2
GIB = 2**30


def grpo_of_logprobs(logp, tokens):
    """GRPO with a k3 KL from log-probs [B, T], as a trainer writes it in PyTorch."""
    ratio = (logp - tokens["old"]).exp()
    advantage = tokens["advantages"][:, None]
    policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantage)
    d = tokens["ref"] - logp
    each = policy + BETA * (d.exp() - d - 1)
    return (each * tokens["mask"]).sum() / tokens["count"]


def eager(logits, tokens):
    logp = (logits.float() / TEMPERATURE).log_softmax(-1).gather(-1, tokens["ids"][..., None])[..., 0]
    return grpo_of_logprobs(logp, tokens)


@functools.cache
def compiled_eager() -> Callable:
    return torch.compile(eager, dynamic=True)


def make_tokens(n: int, vocab: int, density: float) -> dict:
    """Ids, masks and log-probs near those of random logits, for SEQUENCES sequences."""
    shape = (SEQUENCES, n // SEQUENCES)
    logp = torch.randn(shape, device="cuda") - 12.5
    mask = torch.rand(shape, device="cuda") < density
    return {
        "ids": torch.randint(0, vocab, shape, device="cuda"),
        "old": logp,
        "ref": logp + 0.1 * torch.randn(shape, device="cuda"),
        "mask": mask,
        "count": float(mask.sum()),
        "advantages": torch.randn(SEQUENCES, device="cuda"),
    }


def our_options(tokens: dict) -> dict:
    return {
        "advantages": tokens["advantages"], "old_logprobs": tokens["old"], "ref_logprobs": tokens["ref"], "beta": BETA,
        "mask": tokens["mask"], "num_tokens": tokens["count"], "temperature": TEMPERATURE,
    }  # fmt: skip


def three_gemms(hidden: torch.Tensor, weight: torch.Tensor) -> Callable[[], object]:
    """A linear layer's three products by themselves, logits held whole and outputs allocated beforehand."""
    logits = torch.empty(hidden.shape[0], VOCAB, device="cuda", dtype=torch.bfloat16)
    d_hidden, d_weight = torch.empty_like(hidden), torch.empty_like(weight)

    def run():
        torch.mm(hidden, weight.t(), out=logits)
        torch.mm(logits, weight, out=d_hidden)
        torch.mm(logits.t(), hidden, out=d_weight)

    return run


def warm(gemms: Callable[[], object]) -> None:
    """Hold the GPU at its power limit for a while, as the layers below a head do. It slows down there, and what runs after
    something light would gain by what went before it."""
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_S:
        gemms()
        torch.cuda.synchronize()
