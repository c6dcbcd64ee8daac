"""The Triton kernels themselves, on a CPU, float32, in the process of `interpreted.py`.

The answer to any request has for each case the errors against the float64 reference.
"""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import torch
from triton.runtime import interpreter

from kernrl.kernels import ratio_kl
from kernrl.kernels.over_logits import vocab, vocab_parallel
from kernrl.kernels.over_logits.shares import shares
from kernrl.kernels.over_logits.vocab import vocab_gradient, vocab_loss, vocab_stats, vocab_stats_reference
from kernrl.kernels.over_tokens import token_reduce
from kernrl.kernels.over_tokens.token_loss import METRICS, policy_loss_reference
from kernrl.kernels.over_tokens.token_reduce import reduce_tokens
from kernrl.kernels.over_tokens.tokens import prepare, read_options, with_sequence_correction
from kernrl.kernels.ratio_kl import _RatioKl
from kernrl.policy.decode_attention import NO_COLUMN, attend_in_one_kernel
from kernrl.policy.fused_norm import rms_norm
from support import EXHAUSTIVE

TEMPERATURE = 0.7
vocab.tile_for = lambda *_, **__: (1024, 1)  # so that a short row takes several tiles


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
    batch, _ = read_options(ids.shape, TEMPERATURE, options)
    loss, metrics = reduce_tokens(got_logp, got_entropy, batch, config)
    return {
        "logp": (got_logp - logp)[mask].abs().max().item(),
        "entropy": (got_entropy - entropy)[mask].abs().max().item(),
        "loss": (abs(loss - want) / want.abs().clamp(min=1)).item(),
        "gradient": ((out - exact.grad).norm(dim=1) / exact.grad.norm(dim=1).clamp(min=1e-30))[mask].max().item(),
        "masked": out[~mask].abs().max().item(),
        "metrics": max(
            (abs(value - want_metrics[name]) / want_metrics[name].abs().clamp(min=1)).item()
            for name, value in zip(METRICS, metrics, strict=False)
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


def columns_of_two_ranks(first: int) -> dict[str, float]:
    """What `vocab_parallel` asks of the kernels, one rank after the other: `first` columns, and the others."""
    logits, ids, mask = hard_logits(6, 2500)
    ids[0], ids[5] = first, first - 1
    exact = logits.double().where(mask[:, None], 0.0).requires_grad_()
    logp, entropy = vocab_stats_reference(exact, ids.where(mask, 0), TEMPERATURE)
    g, h = torch.linspace(-1, 1, 6), torch.linspace(0.5, 1, 6)
    (g * logp + h * entropy)[mask].sum().backward()
    assert exact.grad is not None
    shards = [(logits[:, :first].contiguous(), ids), (logits[:, first:].contiguous(), ids - first)]
    parts = torch.stack([vocab_parallel.partials(columns, own, mask, TEMPERATURE) for columns, own in shards])
    got_logp, got_entropy, lse, found = vocab_parallel.combine(parts)
    stats = got_logp, got_entropy, lse
    outs = []
    for columns, own in shards:
        outs.append(torch.full_like(columns, 7.0))
        vocab_parallel.gradient(outs[-1], columns, own, mask, stats, g, h, TEMPERATURE)
    out = torch.cat(outs, 1)
    error = (out - exact.grad).norm(dim=1) / exact.grad.norm(dim=1).clamp(min=1e-30)
    return {
        "logp": (got_logp - logp)[mask].abs().max().item(),
        "entropy": (got_entropy - entropy)[mask].abs().max().item(),
        "gradient": error[mask].max().item(),
        "masked": out[~mask].abs().max().item() + float(not found[mask].all()),
    }


def attention_of_a_step(heads: int, kv_heads: int, dim: int, position: int) -> dict[str, float]:
    """A decoding step's attention, over columns that hold NaN wherever a row must not look."""
    generator = torch.Generator().manual_seed(5)
    rows, capacity = 4, position + 30
    query = torch.randn(rows, 1, heads, dim, generator=generator).transpose(1, 2)
    key, value = torch.randn(2, rows, kv_heads, 1, dim, generator=generator).unbind()
    keys, values = torch.randn(2, rows, kv_heads, capacity, dim, generator=generator).unbind()
    starts = torch.tensor([0, min(5, position), position, NO_COLUMN])
    for row, start in enumerate(starts.tolist()):
        seen = torch.arange(capacity).ge(start) & torch.arange(capacity).lt(position)
        keys[row, :, ~seen], values[row, :, ~seen] = math.nan, math.nan
    before = keys.clone()
    got = attend_in_one_kernel(query, key, value, keys, values, starts, torch.tensor([position]), 0.3)
    wanted = torch.empty_like(got, dtype=torch.float64)
    for row, head in itertools.product(range(rows), range(heads)):
        pair, first = (row, head // (heads // kv_heads)), int(starts[row].clamp(max=position))
        seen_keys = torch.cat([keys[pair][first:position], key[pair]]).double()
        seen_values = torch.cat([values[pair][first:position], value[pair]]).double()
        wanted[row, 0, head] = (seen_keys @ query[row, head, 0].double() * 0.3).softmax(0) @ seen_values
    untouched = torch.arange(capacity) != position
    kept = torch.equal(keys[:, :, position], key[:, :, 0]) and torch.equal(values[:, :, position], value[:, :, 0])
    same = torch.equal(keys[:, :, untouched].nan_to_num(), before[:, :, untouched].nan_to_num())
    return {"out": (got - wanted).abs().max().item(), "masked": float(not (kept and same))}


def norm_of_a_step(size: int) -> dict[str, float]:
    x, weight = torch.randn(3, 1, size, generator=torch.Generator().manual_seed(6)), torch.linspace(-2, 2, size)
    wanted = torch.nn.functional.rms_norm(x.double(), (size,), weight.double(), 1e-6)
    return {"out": (rms_norm(x, weight, 1e-6) - wanted).abs().max().item()}


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


def odd_rows() -> dict[str, float]:
    """Rows that start at every offset from a multiple of 16 bytes, in place; what lies between them is not touched."""
    n, size = 9, 2501
    logits, ids, mask = hard_logits(n, size)
    ids[5], ids[6] = 0, size - 1
    exact = logits.double().where(mask[:, None], 0.0).requires_grad_()
    logp, entropy = vocab_stats_reference(exact, ids.where(mask, 0), TEMPERATURE)
    options = {"advantages": torch.linspace(-1, 1, n), "mask": mask, "loss_type": "reinforce", "entropy_coef": 0.1}
    tokens, config = prepare(ids, TEMPERATURE, options)
    policy_loss_reference(logp, entropy, tokens, config)[0].backward()
    assert exact.grad is not None
    around = torch.full((n * size + 64,), 7.0)
    out = around[32 : 32 + n * size].view(n, size)
    out.copy_(logits)
    got_logp, _, _ = vocab_loss(out, out, tokens, config, TEMPERATURE)
    untouched = (around[:32] == 7).all() and (around[-32:] == 7).all()
    return {
        "logp": (got_logp - logp)[mask].abs().max().item(),
        "gradient": ((out - exact.grad).norm(dim=1) / exact.grad.norm(dim=1).clamp(min=1e-30))[mask].max().item(),
        "masked": out[~mask].abs().max().item() + float(not untouched),
    }


def loads_beyond(run: Callable[..., object], *rows: torch.Tensor) -> int:
    """How often the kernels that `run(*rows)` launches load something from right before or right behind the rows."""
    fenced, fences = [], []
    for x in rows:
        around = torch.full((x.numel() + 64,), 7.0)
        fenced.append(around[32:-32].view(x.shape).copy_(x))
        fences += [around[:32], around[-32:]]
    load, found = interpreter.InterpreterBuilder.create_masked_load, 0

    def watched(builder, ptrs, mask, *rest):
        nonlocal found
        at = ptrs.data[mask.data.astype(bool)].astype("int64")
        found += sum(int(((at >= x.data_ptr()) & (at < x.data_ptr() + x.nbytes)).sum()) for x in fences)
        return load(builder, ptrs, mask, *rest)

    interpreter.InterpreterBuilder.create_masked_load = watched
    try:
        run(*fenced)
    finally:
        interpreter.InterpreterBuilder.create_masked_load = load
    return found


def loads_of_every_kernel(n: int, size: int) -> dict[str, float]:
    """Groups of 16 bytes are loaded whole, but not where they end behind the last row."""
    generator = torch.Generator().manual_seed(7)
    logits, other = torch.randn(2, n, size, generator=generator).unbind()
    ids, mask, ones = torch.randint(0, size, (n,), generator=generator), torch.ones(n, dtype=torch.bool), torch.ones(n)
    ids[-1] = size - 1
    logits[-1, -1] = -200.0  # so that the last row is summed once more
    tokens, config = prepare(ids, TEMPERATURE, {"advantages": ones, "loss_type": "reinforce"})

    def loss(x):
        vocab_loss(x, x, tokens, config, TEMPERATURE)

    def stats_then_gradient(x):
        vocab_gradient(x, x, ids, mask, vocab_stats(x, ids, mask, TEMPERATURE), ones, ones, TEMPERATURE)

    def ratio_then_gradient(x, y):
        torch.autograd.backward(_RatioKl.apply(x.requires_grad_(), y, ids, mask, ones, TEMPERATURE), [ones, ones])

    beyond = loads_beyond(loss, logits) + loads_beyond(stats_then_gradient, logits)
    return {"masked": float(beyond + loads_beyond(ratio_then_gradient, logits, other))}


def ratio_and_kl() -> dict[str, float]:
    logits, ids, mask = hard_logits(6, 2501)
    other = logits + 0.1 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    old = vocab_stats_reference(logits, ids.where(mask, 0), TEMPERATURE)[0] + 0.3
    weights = torch.randn(2, 6, generator=torch.Generator().manual_seed(3))
    leaf = logits.clone().requires_grad_()
    ratio, kl = _RatioKl.apply(leaf, other, ids, mask, old, TEMPERATURE)
    (ratio * weights[0] + kl * weights[1]).sum().backward()
    exact = logits.double().where(mask[:, None], 0.0).requires_grad_()
    wanted = ratio_kl(exact, other.double().where(mask[:, None], 0.0), ids, mask, old.double(), TEMPERATURE)
    (wanted[0] * weights[0] + wanted[1] * weights[1]).sum().backward()
    assert leaf.grad is not None
    assert exact.grad is not None
    norm = exact.grad.norm(dim=1).clamp(min=1e-30)
    return {
        "loss": max(((x - y) / y.abs().clamp(min=1)).abs().max().item() for x, y in zip((ratio, kl), wanted, strict=True)),
        "gradient": ((leaf.grad - exact.grad).norm(dim=1) / norm)[mask].max().item(),
        "masked": leaf.grad[~mask].abs().max().item(),
    }


def token_case(case: dict, packed: bool, programs: int) -> dict[str, float]:
    """The kernel over tokens against the reference: loss, metrics and gradient of log-probs, for [B, T] or packed tokens."""
    token_reduce.PER_SM = programs
    generator = torch.Generator().manual_seed(4)
    shape = (5, 300)
    logp = torch.randn(shape, generator=generator) - 3
    mask = (torch.rand(shape, generator=generator) < 0.7).float()
    mask[3] = 0
    options = {"advantages": torch.randn(5, generator=generator), "mask": mask, **case}
    for name in ("old_logprobs", "ref_logprobs", "rollout_logprobs"):
        if name in case:
            options[name] = logp + case[name] * torch.randn(shape, generator=generator)
            options[name][0, 0] -= 40.0  # beyond where log ratios are held
    if packed:
        keep = torch.rand(shape, generator=generator) < 0.9
        logp = logp[keep]
        options = {k: v[keep] if torch.is_tensor(v) and v.shape == shape else v for k, v in options.items()}
        options["cu_seqlens"] = torch.cat([torch.zeros(1, dtype=torch.int64), keep.sum(1).cumsum(0)])
    off = options["mask"] == 0
    logp[off] = math.nan
    batch, config = read_options(logp.shape, 1.0, options)
    g = torch.full_like(logp, 7.0)
    loss, metrics = reduce_tokens(logp, None, batch, config, g)
    doubled = {name: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for name, v in options.items()}
    ids = torch.zeros(logp.shape, dtype=torch.int64)
    exact = logp.double().requires_grad_()
    tokens = with_sequence_correction(prepare(ids, 1.0, doubled)[0], exact.detach().view(-1), config)
    want, wanted = policy_loss_reference(exact.view(-1), torch.zeros(ids.numel(), dtype=torch.float64), tokens, config)
    want.backward()
    assert exact.grad is not None
    spread = shares(batch, ids, config) if options.get("old_logprobs") is not None else tokens
    weight = torch.as_tensor(batch.plan.weight_scale if spread.weight is None else spread.weight)
    want_weight = torch.as_tensor(batch.plan.weight_scale if tokens.weight is None else tokens.weight)
    if tokens.count is not None:
        weight, want_weight = weight / spread.count, want_weight / tokens.count
    rho = 0.0
    if config.correction.startswith("sequence"):
        rho = (spread.correction - tokens.correction).abs().max().item()
    return {
        "loss": (abs(loss - want) / want.abs().clamp(min=1)).item(),
        "gradient": ((g - exact.grad).norm() / exact.grad.norm()).item(),
        "masked": g[off].abs().max().item(),
        "metrics": max(
            (abs(value - wanted[name]) / wanted[name].abs().clamp(min=1)).item()
            for name, value in zip(METRICS, metrics, strict=False)
        )
        + abs(metrics[-1] - metrics[3:6].sum()).item(),
        "shares": ((weight - want_weight).abs() / want_weight).max().item() + rho,
    }


TOKEN_CASES = {
    "clip": {"old_logprobs": 0.4},
    "delta, k3, sum": {"old_logprobs": 0.6, "delta": 1.3, "ref_logprobs": 0.3, "beta": 0.15, "aggregation": "sum"},
    "gspo": {"old_logprobs": 0.4, "loss_type": "gspo", "epsilon_high": 0.02},
    "gspo, k2, token mean": {
        "old_logprobs": 0.4, "loss_type": "gspo", "ref_logprobs": 0.3, "beta": 0.15, "kl_estimator": "k2",
        "aggregation": "token_mean",
    },
    "luspo": {"old_logprobs": 0.4, "loss_type": "luspo", "epsilon_high": 0.02, "num_sequences": 9},
    "vespo": {"old_logprobs": 0.05, "loss_type": "vespo"},
    "vespo, on policy, k3": {"loss_type": "vespo", "ref_logprobs": 0.3, "beta": 0.15, "aggregation": "sequence_mean"},
    "gmpo": {"old_logprobs": 0.4, "loss_type": "gmpo", "epsilon_high": 0.3},
    "gmpo, k3, token truncate": {
        "old_logprobs": 0.4, "loss_type": "gmpo", "ref_logprobs": 0.3, "beta": 0.15, "rollout_logprobs": 0.05,
        "correction": "token_truncate", "correction_max": 1.02, "aggregation": "token_mean",
    },
    "gmpo, sequence mask, on policy": {
        "loss_type": "gmpo", "rollout_logprobs": 0.05, "correction": "sequence_mask", "correction_min": 0.5,
    },
    "sapo by sequence": {"old_logprobs": 0.4, "loss_type": "sapo", "importance_sampling": "sequence"},
    "cispo by sequence": {"old_logprobs": 0.4, "loss_type": "cispo", "importance_sampling": "sequence"},
    "sequence truncate": {"old_logprobs": 0.2, "rollout_logprobs": 0.05, "correction": "sequence_truncate"},
    "sequence mask, on policy": {"rollout_logprobs": 0.05, "correction": "sequence_mask", "correction_min": 0.5},
    "sequence mask, lengths": {
        "old_logprobs": 0.2, "rollout_logprobs": 0.05, "correction": "sequence_mask", "aggregation": "sequence_mean",
    },
    "token mask, count given": {
        "old_logprobs": 0.2, "rollout_logprobs": 0.2, "correction": "token_mask", "num_tokens": torch.tensor(777),
    },
    "fixed length": {"old_logprobs": 0.2, "loss_type": "dr_grpo", "max_tokens": 64},
    **{
        f"delta, k1, {level} truncate": {
            "old_logprobs": 0.6, "delta": 1.3, "ref_logprobs": 0.3, "beta": 0.15, "kl_estimator": "k1",
            "rollout_logprobs": 0.05, "correction": f"{level}_truncate", "correction_max": 1.1,
        } for level in ("token", "sequence")
    },
}  # fmt: skip

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


def answer(request: object, folder: Path) -> dict[str, dict[str, float]]:
    errors = {name: compare(case) for name, case in CASES.items()}
    for number, (name, case) in enumerate(TOKEN_CASES.items()):
        waits = case.get("aggregation", "token_mean") == "token_mean" and "num_tokens" not in case
        for packed in (False, True) if EXHAUSTIVE else (bool(number % 2),):
            errors[f"{name}, packed {packed}"] = token_case(case, packed, programs=1 if waits else 3)
    errors |= {"odd rows": odd_rows(), "ratio_kl": ratio_and_kl()}
    errors |= {"two_kernels": two_kernels(), "unlikely": unlikely_actions(), "broken": broken_rows()}
    for n, size in ((1, 3), (3, 1023), (3, 1026), (1, 2501), (2, 1024)):
        errors[f"loads of {n} rows of {size}"] = loads_of_every_kernel(n, size)
    errors |= {f"two ranks, {first}": columns_of_two_ranks(first) for first in (1250, 2300, 2450)}
    for shape in ((8, 2, 64, 70), (6, 2, 24, 33), (4, 4, 16, 0), (3, 1, 64, 129)):
        errors[f"attention of a step, {shape}"] = attention_of_a_step(*shape)
    errors |= {f"norm of a step, {size}": norm_of_a_step(size) for size in (512, 500)}
    return errors
