"""The part of `bench_loss.py` that times the other loss types, `token_logprobs`, `linear_cross_entropy`, and what a call costs
the host."""

import functools
from collections.abc import Callable, Iterator

import torch
from loss_batches import BETA, EPSILON, GIB, SEQUENCES, TEMPERATURE, VOCAB, eager, make_tokens, our_options, three_gemms, warm
from loss_timing import forward_backward, host_and_wall_us, medians_ms, peak_bytes

VARIANTS: dict[str, dict] = {
    **{loss_type: {"loss_type": loss_type} for loss_type in ("gspo", "luspo", "vespo", "gmpo", "cispo", "sapo", "reinforce")},
    "dr_grpo": {"loss_type": "dr_grpo", "max_tokens": 1024},
    "grpo by sequence": {"aggregation": "sequence_mean"},
    "grpo with an entropy bonus": {"entropy_coef": 0.01},
}
"""`grpo_loss`'s options; bnpo and dapo are grpo's launches themselves."""


def bench_variants(n: int, vocab: int) -> Iterator[dict]:
    from kernrl.kernels import grpo_loss
    from kernrl.kernels.grpo import grpo_loss_reference
    from kernrl.kernels.over_tokens.tokens import prepare

    tokens = make_tokens(n, vocab, 1.0)
    master = torch.randn(SEQUENCES, n // SEQUENCES, vocab, device="cuda", dtype=torch.bfloat16) * 2
    buffer = torch.empty_like(master)
    without_temperature = {key: value for key, value in our_options(tokens).items() if key != "temperature"}
    runs: dict[str, Callable[[], object]] = {"copy": lambda: buffer.copy_(master)}
    for name, variant in VARIANTS.items():

        def loss(x, variant=variant):
            return grpo_loss(x, tokens["ids"], **our_options(tokens), **variant)[0]

        def in_pytorch(x, variant=variant):
            prepared, config = prepare(tokens["ids"], TEMPERATURE, {**without_temperature, **variant})
            return grpo_loss_reference(x.reshape(n, vocab), prepared, config, TEMPERATURE)[0]

        runs[name] = functools.partial(forward_backward, loss, buffer)
        runs[f"{name}, eager"] = functools.partial(forward_backward, in_pytorch, buffer)
    times = medians_ms(runs, lambda: buffer.copy_(master), rounds=7)
    for name, run in runs.items():
        floor = (
            "the logits read and written once (a copy). gspo, luspo, vespo and gmpo need every log-prob of a sequence before "
            "its first gradient: three transfers of two are their least, 1.5"
        )
        peak = peak_bytes(run) / GIB if name in times else None
        yield {**_row(name, times.get(name), times["copy"], floor), "peak_gib": peak}


def logprobs_in_pytorch(logits, ids):
    """(log-probs, entropies), as a trainer writes them in PyTorch."""
    every = (logits.float() / TEMPERATURE).log_softmax(-1)
    return every.gather(-1, ids[..., None])[..., 0], -(every.exp() * every).sum(-1)


def bench_logprobs(n: int, vocab: int, width: int) -> Iterator[dict]:
    from kernrl.kernels import token_logprobs

    tokens = make_tokens(n, vocab, 1.0)
    ids, weights = tokens["ids"], torch.randn(2, *tokens["ids"].shape, device="cuda").unbind()
    logits = torch.randn(*ids.shape, vocab, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(logits)
    hidden = torch.randn(*ids.shape, width, device="cuda", dtype=torch.bfloat16)
    head = torch.randn(vocab, width, device="cuda", dtype=torch.bfloat16) * width**-0.5
    compiled = torch.compile(logprobs_in_pytorch)
    ops: dict[str, Callable] = {
        "kernrl": lambda x: token_logprobs(x, ids, temperature=TEMPERATURE),
        "torch.compile": lambda x: compiled(x, ids),
        "eager": lambda x: logprobs_in_pytorch(x, ids),
    }
    from_hidden: dict[str, Callable] = {
        "kernrl": lambda: token_logprobs(hidden, ids, temperature=TEMPERATURE, lm_head_weight=head),
        "eager": lambda: logprobs_in_pytorch(hidden @ head.t(), ids),
    }
    try:
        from trl.kernels import (  # pyright: ignore[reportMissingImports]
            ChunkedLogProbFunction,
            selective_log_softmax_and_entropy,
        )

        ops["TRL"] = lambda x: selective_log_softmax_and_entropy(x, ids, TEMPERATURE)[:2]
        from_hidden["TRL, chunked"] = lambda: ChunkedLogProbFunction.apply(
            hidden.view(n, width), head, None, ids.view(-1), TEMPERATURE, 8192
        )
    except ImportError:
        pass

    def backward(op):
        torch.autograd.backward(op(logits.detach().requires_grad_()), weights)

    alone, both, hidden_in = "forward alone", "forward + backward", f"forward alone, from hidden states of width {width}"
    runs: dict[tuple[str, str], Callable[[], object]] = {
        **{(name, alone): functools.partial(op, logits) for name, op in ops.items()},
        **{(name, both): functools.partial(backward, op) for name, op in ops.items()},
        **{(name, hidden_in): run for name, run in from_hidden.items()},
    }
    try:
        from liger_kernel.ops.grpo_loss import fused_selective_log_softmax  # pyright: ignore[reportMissingImports]

        # Liger wants one position more in each sequence, which it does not read.
        longer = torch.randn(SEQUENCES, n // SEQUENCES + 1, vocab, device="cuda", dtype=torch.bfloat16)
        runs["Liger, without entropies", alone] = lambda: fused_selective_log_softmax(longer, ids, TEMPERATURE)
    except ImportError:
        pass
    timed = {f"{name}, {what}": run for (name, what), run in runs.items()}
    timed["copy"] = lambda: out.copy_(logits)
    timed["product"] = lambda: torch.mm(hidden.view(n, width), head.t(), out=out.view(n, vocab))
    with torch.no_grad():
        forward_only = {name: run for name, run in timed.items() if both not in name}
        times = medians_ms(forward_only, rounds=7)
    times |= medians_ms({name: run for name, run in timed.items() if both in name}, rounds=7)
    floors = {alone: times["copy"] / 2, both: times["copy"], hidden_in: times["product"]}
    for name, what in runs:
        label = f"{name}, {what}"
        floor = (
            "forward alone, the logits read at the speed of a copy, or the product that makes them by itself; with backward, "
            "the logits read and their gradient written at that speed. Upstream's gradient is not known when the logits are "
            "first read, so three transfers of two are the least: 1.5"
        )
        yield _row(label, times.get(label), floors[what], floor)


def cross_entropy_in_pytorch(hidden, head, targets):
    return torch.nn.functional.cross_entropy((hidden @ head.t()).float(), targets)


def bench_cross_entropy(n: int, width: int, compile_too: bool) -> Iterator[dict]:
    from kernrl.kernels import linear_cross_entropy

    hidden = torch.randn(n, width, device="cuda", dtype=torch.bfloat16)
    head = torch.randn(VOCAB, width, device="cuda", dtype=torch.bfloat16) * width**-0.5
    targets, main = torch.randint(0, VOCAB, (n,), device="cuda"), torch.zeros(VOCAB, width, device="cuda")
    losses: dict[str, Callable] = {
        "kernrl": lambda h, w: linear_cross_entropy(h, w, targets)[0],
        "kernrl, into a float32 main gradient": lambda h, w: linear_cross_entropy(h, w, targets, weight_grad=main)[0],
        "eager": lambda h, w: cross_entropy_in_pytorch(h, w, targets),
    }
    if compile_too:
        compiled = torch.compile(cross_entropy_in_pytorch)
        losses["torch.compile"] = lambda h, w: compiled(h, w, targets)
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss  # pyright: ignore[reportMissingImports]

        liger = LigerFusedLinearCrossEntropyLoss()
        losses["Liger fused linear"] = lambda h, w: liger(w, h, targets)
    except ImportError:
        pass
    gemms = three_gemms(hidden, head)
    runs: dict[str, Callable[[], object]] = {"three GEMMs": gemms}
    runs |= {name: functools.partial(forward_backward, loss, hidden, head) for name, loss in losses.items()}
    times = medians_ms(runs, lambda: warm(gemms), rounds=7)
    for name, run in runs.items():
        gradients = 0 if name == "three GEMMs" else hidden.nbytes + (0 if "main gradient" in name else head.nbytes)
        peak = (peak_bytes(run) - gradients) / GIB if name in times else None
        floor = "the three products of a linear layer by themselves, just before"
        yield {**_row(name, times.get(name), times["three GEMMs"], floor), "peak_gib": peak}


def bench_host(n: int, vocab: int, width: int) -> Iterator[dict]:
    """Of forward + backward of so few tokens that the GPU is soon done."""
    from kernrl.kernels import grpo_loss, linear_cross_entropy, linear_grpo_loss, ratio_kl, token_logprobs

    tokens = make_tokens(n, vocab, 1.0)
    ids, mask, options = tokens["ids"], tokens["mask"], our_options(tokens)
    # Each gradient is written over these logits and is the next call's input, as finite as they were.
    logits, ref = (torch.randn(*ids.shape, vocab, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    hidden = torch.randn(*ids.shape, width, device="cuda", dtype=torch.bfloat16)
    head = torch.randn(vocab, width, device="cuda", dtype=torch.bfloat16) * width**-0.5
    weights = torch.randn(2, *ids.shape, device="cuda").unbind()

    def both_of(loss):
        torch.autograd.backward(loss(logits.detach().requires_grad_()), weights)

    def ours(loss, *inputs):
        return functools.partial(forward_backward, lambda *given: loss(*given, ids, **options)[0], *inputs)

    runs: dict[tuple[str, str], Callable[[], object]] = {
        ("grpo_loss", "kernrl, in place"): ours(grpo_loss, logits),
        ("grpo_loss", "eager"): functools.partial(forward_backward, lambda x: eager(x, tokens), logits),
        ("linear_grpo_loss", "kernrl"): ours(linear_grpo_loss, hidden, head),
        ("linear_grpo_loss", "eager"): functools.partial(forward_backward, lambda h, w: eager(h @ w.t(), tokens), hidden, head),
        ("ratio_kl", "kernrl"): lambda: both_of(lambda x: ratio_kl(x, ref, ids, mask, tokens["old"], TEMPERATURE)),
        ("token_logprobs", "kernrl"): lambda: both_of(lambda x: token_logprobs(x, ids, temperature=TEMPERATURE)),
        ("token_logprobs", "eager"): lambda: both_of(lambda x: logprobs_in_pytorch(x, ids)),
        ("linear_cross_entropy", "kernrl"): lambda: forward_backward(
            lambda h, w: linear_cross_entropy(h, w, ids)[0], hidden, head
        ),
        ("linear_cross_entropy", "eager"): lambda: forward_backward(
            lambda h, w: cross_entropy_in_pytorch(h.view(n, width), w, ids.view(-1)), hidden, head
        ),
    }
    try:
        from liger_kernel.transformers.grpo_loss import triton_grpo_loss  # pyright: ignore[reportMissingImports]

        longer = torch.randn(SEQUENCES, n // SEQUENCES + 1, vocab, device="cuda", dtype=torch.bfloat16)
        runs["grpo_loss", "Liger, in place"] = functools.partial(
            forward_backward,
            lambda x: triton_grpo_loss(
                x, tokens["old"], tokens["ref"], ids, tokens["advantages"], mask.int(), temperature=TEMPERATURE, beta=BETA,
                eps_low=EPSILON, eps_high=EPSILON, inplace=True, loss_type="bnpo", reduce=True,
            )[0], longer,
        )  # fmt: skip
    except ImportError:
        pass
    for run in runs.values():
        run()  # compiles
    costs = host_and_wall_us({f"{op}: {name}": run for (op, name), run in runs.items()})
    for op, name in runs:
        host, wall = costs[f"{op}: {name}"]
        shape = [n, width if op.startswith("linear") else vocab]
        yield {"shape": shape, "name": f"{op}: {name}", "host_us": host, "wall_us": wall}


def _row(name: str, ms: float | None, floor_ms: float, floor: str) -> dict:
    return {"name": name, "ms": ms, "x_floor": None if ms is None else ms / floor_ms, "floor": floor}
