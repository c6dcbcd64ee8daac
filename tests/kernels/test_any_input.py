"""The public losses on a CPU, for inputs that hypothesis draws: shapes, strides, dtypes, masks and extreme logits.

Every result is compared with autograd through the same formulas in float64, of clean contiguous copies of the inputs.
"""

import math

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import EXHAUSTIVE

from kernrl.kernels import grpo_loss, linear_cross_entropy, linear_grpo_loss, ppo_loss, ratio_kl, token_logprobs
from kernrl.kernels.over_tokens.token_loss import LOSS_TYPES

torch.set_num_threads(1)
BOUNDED = settings(max_examples=150 if EXHAUSTIVE else 50, deadline=None)
# Of a result beside float64 given the same rounded inputs: log-probs are float32 whatever the logits are, and a gradient is
# rounded once to the logits' dtype. Logits of +-80 leave a log-prob of some hundred, in steps of 3e-5.
LIMIT = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 2**-7, torch.float16: 2**-9}

dtypes = st.sampled_from(list(LIMIT))
seeds = st.integers(0, 2**31)
shapes = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(2, 33))
scales = st.sampled_from([0.0, 1e-3, 1.0, 20.0])
layouts = st.sampled_from(["contiguous", "transposed", "sliced", "strided"])


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """`x` [.., V] with other strides; what lies between its elements is NaN."""
    if layout == "transposed":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "contiguous":
        return x.contiguous()
    step = 2 if layout == "strided" else 1
    wide = torch.full((*x.shape[:-1], step * x.shape[-1] + 3), math.nan, dtype=x.dtype)
    view = wide[..., 2 : 2 + step * x.shape[-1] : step]
    return view.copy_(x)


@st.composite
def batches(draw):
    """(logits, ids, mask, noise, generator): some rows with one huge logit, some with -inf, masked rows with NaN."""
    b, t, v = draw(shapes)
    dtype, generator = draw(dtypes), torch.Generator().manual_seed(draw(seeds))
    noise = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    logits = noise(b, t, v) * draw(scales)
    ids = torch.randint(0, v, (b, t), generator=generator)
    at = torch.randint(0, v, (b, t, 1), generator=generator)
    kind = torch.randint(0, 4, (b, t, 1), generator=generator)
    extreme = draw(st.sampled_from([30.0, 80.0]))
    some = torch.where(kind == 1, extreme, torch.where(kind == 2, -math.inf, logits.gather(-1, at)))
    some = some.where((kind != 2) | (at != ids[..., None]), 0.0)  # an impossible action has no finite loss
    logits = logits.scatter(-1, at, some).to(dtype)
    mask = torch.rand(b, t, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    logits[~mask], ids = math.nan, ids.where(mask, -100)
    return logits, ids, mask, noise


def clean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.double().where(mask[..., None] if x.dim() > mask.dim() else mask, 0.0).contiguous()


def check(got: torch.Tensor, want: torch.Tensor, limit: float, what: str) -> None:
    assert got.isfinite().all(), what
    assert (got.double() - want).norm() <= limit * max(1.0, want.norm().item()), what


@BOUNDED
@given(
    batches(), layouts, st.sampled_from(sorted(LOSS_TYPES)), st.sampled_from(["none", "token_mask", "sequence_truncate"]),
    st.sampled_from(["k1", "k2", "k3"]), st.sampled_from([0.0, 0.1]), st.floats(0.3, 3),
)  # fmt: skip
def test_grpo_loss(batch, layout, loss_type, correction, kl, entropy_coef, temperature):
    logits, ids, mask, noise = batch
    limit = LIMIT[logits.dtype]
    known = clean(logits, mask)
    logp = (known / temperature).log_softmax(-1).gather(-1, ids.where(mask, 0)[..., None])[..., 0]
    # Rounded as a trainer would have them, so that both sides are given the same.
    width = torch.float64 if logits.dtype == torch.float64 else torch.float32
    names = ("old_logprobs", "ref_logprobs", "rollout_logprobs")
    given = {name: (logp.detach() + 0.2 * noise(*ids.shape)).to(width) for name in names}
    advantages = noise(ids.shape[0]).to(width)
    options = {
        "loss_type": loss_type, "correction": "none" if loss_type == "vespo" else correction, "kl_estimator": kl, "beta": 0.05,
        "entropy_coef": entropy_coef, "max_tokens": 7, "temperature": temperature, "mask": mask,
    }  # fmt: skip
    exact = known.requires_grad_()
    doubled = {name: x.double() for name, x in given.items()}
    want, wanted = grpo_loss(exact, ids.where(mask, 0), advantages=advantages.double(), **doubled, **options)
    want.backward()
    broken = {name: x.masked_fill(~mask, math.nan) for name, x in given.items()}
    leaf = laid_out(logits, layout).requires_grad_()
    loss, metrics = grpo_loss(leaf, ids, advantages=advantages, **broken, **options)
    loss.backward()
    # Ratios amplify a log-prob's rounding; both sides share the scale of the largest one.
    scale = max(1.0, wanted["ratio_max"].item())
    check(loss.detach(), want.detach(), limit * scale, "loss")
    check(leaf.grad, exact.grad, limit * scale, "gradient")
    assert (leaf.grad[~mask] == 0).all()
    assert metrics["tokens"] == mask.sum()


@BOUNDED
@given(batches(), layouts, st.floats(0.3, 3))
def test_token_logprobs_and_ratio_kl(batch, layout, temperature):
    logits, ids, mask, noise = batch
    exact, leaf = clean(logits, mask).requires_grad_(), laid_out(logits, layout).requires_grad_()
    g, h = noise(2, *ids.shape)
    want, wanted = token_logprobs(exact, ids, temperature=temperature, mask=mask)
    (want * g + wanted * h).sum().backward()
    logp, entropy = token_logprobs(leaf, ids, temperature=temperature, mask=mask)
    (logp * g + entropy * h).sum().backward()
    limit = LIMIT[logits.dtype]
    # Log-probs are float32 even of 16-bit logits, which both sides have alike.
    check(logp.detach(), want.detach(), min(limit, 1e-5), "logp")
    check(entropy.detach(), wanted.detach(), min(limit, 1e-5), "entropy")
    check(leaf.grad, exact.grad, limit, "gradient")
    assert (logp[~mask] == 0).all()
    ratio, kl = ratio_kl(laid_out(logits, layout), logits, ids, mask, logp.detach(), temperature)
    torch.testing.assert_close(ratio[mask].double(), torch.ones_like(ratio[mask]).double(), rtol=1e-4, atol=0)
    assert (kl[mask].abs() <= 1e-4).all()


@BOUNDED
@given(batches(), st.integers(1, 9), st.sampled_from(["grpo", "gspo", "cispo", "gmpo"]), st.booleans())
def test_losses_from_hidden_states(batch, width, loss_type, transposed):
    logits, ids, mask, noise = batch
    dtype, vocab = logits.dtype, logits.shape[-1]
    hidden, weight = (noise(*ids.shape, width)).to(dtype), noise(vocab, width).to(dtype)
    weight = laid_out(weight, "transposed" if transposed else "contiguous")
    logp = (clean(hidden, mask) @ weight.double().t()).log_softmax(-1).gather(-1, ids.where(mask, 0)[..., None])[..., 0]
    options = {
        "advantages": noise(ids.shape[0]), "old_logprobs": logp.detach() + 0.1, "mask": mask, "loss_type": loss_type,
        "temperature": 1.0,
    }  # fmt: skip
    exact, exact_weight = clean(hidden, mask).requires_grad_(), weight.double().clone().requires_grad_()
    want, _ = linear_grpo_loss(exact, exact_weight, ids, **options)
    nll, _ = linear_cross_entropy(exact, exact_weight, ids)
    (want + nll).backward()
    hidden[~mask] = math.nan
    leaf, leaf_weight = hidden.requires_grad_(), weight.clone().requires_grad_()
    loss, _ = linear_grpo_loss(leaf, leaf_weight, ids, **options)
    (loss + linear_cross_entropy(leaf, leaf_weight, ids)[0]).backward()
    # On a CPU the logits themselves are rounded to the inputs' dtype: of width 9 they are some 10, and a ratio feels it.
    limit = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}[dtype]
    check(loss.detach(), want.detach(), limit, "loss")
    check(leaf.grad, exact.grad, limit, "hidden")
    check(leaf_weight.grad, exact_weight.grad, limit, "weight")


@BOUNDED
@given(shapes, dtypes, seeds, st.sampled_from(sorted(LOSS_TYPES)), st.sampled_from([0.1, 5.0, 60.0]), st.booleans())
def test_ppo_loss(shape, dtype, seed, loss_type, spread, strided):
    b, t, _ = shape
    generator = torch.Generator().manual_seed(seed)
    noise = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    logp = (noise(b, t) - 3).to(dtype)
    old, advantages = (logp.double() + spread * noise(b, t)).to(dtype), noise(b, t)
    mask = (torch.rand(b, t, generator=generator) < 0.7).float()
    options = {"loss_type": loss_type, "delta": 1.5, "max_tokens": 5}
    exact = logp.double().clone().requires_grad_()
    want, wanted = ppo_loss(exact, old.double(), advantages, mask, **options)
    want.backward()
    assume(exact.grad.abs().amax() < torch.finfo(dtype).max)  # float16 ends at 65504, a ratio at exp(20)
    off = mask == 0
    leaf = laid_out(logp.masked_fill(off, math.nan), "strided" if strided else "contiguous").requires_grad_()
    broken = advantages.to(torch.float64 if dtype == torch.float64 else torch.float32).masked_fill(off, math.nan)
    loss, _ = ppo_loss(leaf, old.masked_fill(off, math.nan), broken, mask, **options)
    loss.backward()
    assert leaf.grad[off].eq(0).all()
    scale = max(1.0, wanted["ratio_max"].item())
    check(loss.detach(), want.detach(), LIMIT[dtype] * scale, "loss")
    check(leaf.grad, exact.grad, LIMIT[dtype] * scale, "gradient")
