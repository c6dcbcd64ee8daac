"""The public losses for inputs that hypothesis draws: shapes, strides, dtypes, masks and extreme logits.

Every result is compared with autograd through the same formulas in float64, of clean contiguous copies of the inputs. Each test
takes the place where the loss runs: a CPU, with plain PyTorch or with the kernels in Triton's interpreter, or a GPU.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from kernrl.kernels import grpo_loss, linear_cross_entropy, linear_grpo_loss, ppo_loss, ratio_kl, token_logprobs
from kernrl.kernels.over_tokens.token_loss import LOSS_TYPES


class Place(NamedTuple):
    """Where a loss runs."""

    kernels: bool
    """Whether by the kernels, which take no float64, nor logits in place that are not contiguous."""
    on_gpu: bool = False
    entered: Callable[[], AbstractContextManager] = nullcontext
    vocabularies: tuple[int, ...] = ()
    """To draw beside those from 2 to 33."""

    def move(self, x: torch.Tensor) -> torch.Tensor:
        return x.cuda() if self.on_gpu else x


# Of a result beside float64 given the same rounded inputs: log-probs are float32 whatever the logits are, and a gradient is
# rounded once to the logits' dtype. Logits of +-80 leave a log-prob of some hundred, in steps of 3e-5.
LIMIT = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 2**-7, torch.float16: 2**-9}

LAYOUTS = ("contiguous", "odd", "transposed", "sliced", "strided")
seeds = st.integers(0, 2**31)
scales = st.sampled_from([0.0, 1e-3, 1.0, 20.0])


def dtypes(place: Place):
    return st.sampled_from([dtype for dtype in LIMIT if not (place.kernels and dtype == torch.float64)])


def shapes(place: Place):
    vocabularies = st.integers(2, 33)
    if place.vocabularies:
        vocabularies |= st.sampled_from(place.vocabularies)
    return st.tuples(st.integers(1, 4), st.integers(1, 6), vocabularies)


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """`x` [.., V] with other strides; what lies between its elements is NaN."""
    if layout == "transposed":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "contiguous":
        return x.contiguous()
    if layout == "odd":  # contiguous, at an address that is no multiple of 16 bytes
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    step = 2 if layout == "strided" else 1
    wide = x.new_full((*x.shape[:-1], step * x.shape[-1] + 3), math.nan)
    view = wide[..., 2 : 2 + step * x.shape[-1] : step]
    return view.copy_(x)


@st.composite
def batches(draw, place: Place):
    """(logits, ids, mask, noise, generator): some rows with one huge logit, some with -inf, masked rows with NaN."""
    b, t, v = draw(shapes(place))
    dtype, generator = draw(dtypes(place)), torch.Generator().manual_seed(draw(seeds))
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
    got = got.detach().cpu()
    assert got.isfinite().all(), what
    assert (got.double() - want).norm() <= limit * max(1.0, want.norm().item()), what


def any_grpo_loss(place: Place, draw) -> None:
    logits, ids, mask, noise = draw(batches(place))
    layout = draw(st.sampled_from(LAYOUTS[:2] if place.kernels else LAYOUTS))
    loss_type, temperature = draw(st.sampled_from(sorted(LOSS_TYPES))), draw(st.floats(0.3, 3))
    correction = draw(st.sampled_from(["none", "token_mask", "sequence_truncate"]))
    limit = LIMIT[logits.dtype]
    known = clean(logits, mask)
    logp = (known / temperature).log_softmax(-1).gather(-1, ids.where(mask, 0)[..., None])[..., 0]
    # Rounded as a trainer would have them, so that both sides are given the same.
    width = torch.float64 if logits.dtype == torch.float64 else torch.float32
    names = ("old_logprobs", "ref_logprobs", "rollout_logprobs")
    given = {name: (logp.detach() + 0.2 * noise(*ids.shape)).to(width) for name in names}
    advantages = noise(ids.shape[0]).to(width)
    options = {
        "loss_type": loss_type, "correction": "none" if loss_type == "vespo" else correction, "beta": 0.05, "max_tokens": 7,
        "kl_estimator": draw(st.sampled_from(["k1", "k2", "k3"])), "entropy_coef": draw(st.sampled_from([0.0, 0.1])),
        "temperature": temperature,
    }  # fmt: skip
    exact = known.requires_grad_()
    doubled = {name: x.double() for name, x in given.items()}
    want, wanted = grpo_loss(exact, ids.where(mask, 0), advantages=advantages.double(), mask=mask, **doubled, **options)
    want.backward()
    broken = {name: place.move(x.masked_fill(~mask, math.nan)) for name, x in given.items()}
    leaf = laid_out(place.move(logits.detach()), layout).requires_grad_()
    inplace = draw(st.booleans())
    with place.entered():
        loss, metrics = grpo_loss(
            leaf,
            place.move(ids),
            advantages=place.move(advantages),
            mask=place.move(mask),
            inplace=inplace,
            **broken,
            **options,
        )
        loss.backward()
    # Ratios amplify a log-prob's rounding; both sides share the scale of the largest one.
    scale = max(1.0, wanted["ratio_max"].item())
    check(loss, want.detach(), limit * scale, "loss")
    check(leaf.grad, exact.grad, limit * scale, "gradient")
    assert (leaf.grad[place.move(~mask)] == 0).all()
    assert metrics["tokens"] == mask.sum()


def any_token_logprobs_and_ratio_kl(place: Place, draw) -> None:
    logits, ids, mask, noise = draw(batches(place))
    layout, temperature = draw(st.sampled_from(LAYOUTS)), draw(st.floats(0.3, 3))
    exact, leaf = clean(logits, mask).requires_grad_(), laid_out(place.move(logits.detach()), layout).requires_grad_()
    g, h = noise(2, *ids.shape)
    want, wanted = token_logprobs(exact, ids, temperature=temperature, mask=mask)
    (want * g + wanted * h).sum().backward()
    at, on = place.move(ids), place.move(mask)
    with place.entered():
        logp, entropy = token_logprobs(leaf, at, temperature=temperature, mask=on)
        (logp * place.move(g) + entropy * place.move(h)).sum().backward()
    limit = LIMIT[logits.dtype]
    # Log-probs are float32 even of 16-bit logits, which both sides have alike.
    check(logp, want.detach(), min(limit, 1e-5), "logp")
    check(entropy, wanted.detach(), min(limit, 1e-5), "entropy")
    check(leaf.grad, exact.grad, limit, "gradient")
    assert (logp[~on] == 0).all()
    with place.entered():
        ratio, kl = ratio_kl(laid_out(leaf.detach(), layout), place.move(logits), at, on, logp.detach(), temperature)
    torch.testing.assert_close(ratio[on].double(), torch.ones_like(ratio[on]).double(), rtol=1e-4, atol=0)
    assert (kl[on].abs() <= 1e-4).all()
    # and of policies that differ, with gradients
    ref, old = logits * 0.9, (logp.detach().cpu() + 0.2 * noise(*ids.shape)).float()
    exact, leaf = clean(logits, mask).requires_grad_(), laid_out(place.move(logits.detach()), layout).requires_grad_()
    wanted = ratio_kl(exact, clean(ref, mask), ids, mask, old.double(), temperature)
    (wanted[0] * g + wanted[1] * h).sum().backward()
    assume(exact.grad.abs().amax() < torch.finfo(logits.dtype).max)  # the KL's gradient is exp of the log-probs' difference
    with place.entered():
        given = place.move(ref), at, on, place.move(old.masked_fill(~mask, math.nan)), temperature
        found = ratio_kl(leaf, *given)
        (found[0] * place.move(g) + found[1] * place.move(h)).sum().backward()
    for got, want in zip(found, wanted, strict=True):
        check(got, want.detach(), max(limit, 1e-4) if logits.dtype != torch.float64 else 1e-9, "ratio or kl")
        assert (got[~on] == 0).all()
    check(leaf.grad, exact.grad, limit, "gradient of ratio and kl")


def any_loss_from_hidden_states(place: Place, draw) -> None:
    logits, ids, mask, noise = draw(batches(place))
    width, loss_type = draw(st.integers(1, 9)), draw(st.sampled_from(["grpo", "gspo", "grpo", "cispo", "gmpo"]))
    dtype, vocab = logits.dtype, logits.shape[-1]
    hidden, weight = (noise(*ids.shape, width)).to(dtype), noise(vocab, width).to(dtype)
    weight = laid_out(weight, draw(st.sampled_from(["transposed", "contiguous"])))
    logp = (clean(hidden, mask) @ weight.double().t()).log_softmax(-1).gather(-1, ids.where(mask, 0)[..., None])[..., 0]
    # Ratios of exp(-1.1), exp(-0.1) or exp(0.9): whether they are clipped at 0.8 and 1.2 does not hang on how they are rounded.
    jumps = noise(*ids.shape[: 1 if loss_type == "gspo" else 2]).mul(draw(st.sampled_from([2, 0]))).round().clamp(-1, 1)
    options = {
        "advantages": noise(ids.shape[0]), "old_logprobs": logp.detach() + 0.1 + jumps.view(ids.shape[0], -1), "mask": mask,
        "loss_type": loss_type, "temperature": 1.0,
    }  # fmt: skip
    exact, exact_weight = clean(hidden, mask).requires_grad_(), weight.double().clone().requires_grad_()
    want, wanted = linear_grpo_loss(exact, exact_weight, ids, **options)
    nll, _ = linear_cross_entropy(exact, exact_weight, ids)
    (want + nll).backward()
    hidden[~mask] = math.nan
    leaf, leaf_weight = place.move(hidden).requires_grad_(), place.move(weight.clone()).requires_grad_()
    # Chunks of a 16-bit dtype are summed in float32, by a product that a CPU does not have.
    chunk_rows = 16 if place.on_gpu or dtype == torch.float32 else None
    moved = {name: place.move(x) if torch.is_tensor(x) else x for name, x in options.items()}
    with place.entered():
        loss, _ = linear_grpo_loss(leaf, leaf_weight, place.move(ids), chunk_rows=chunk_rows, **moved)
        (loss + linear_cross_entropy(leaf, leaf_weight, place.move(ids), chunk_rows=chunk_rows)[0]).backward()
    # The logits themselves are rounded to the inputs' dtype: of width 9 they are some 10, and a ratio feels it.
    limit = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}[dtype]
    limit *= max(1.0, wanted["ratio_max"].item())
    check(loss, want.detach(), limit, "loss")
    check(leaf.grad, exact.grad, limit, "hidden")
    check(leaf_weight.grad, exact_weight.grad, limit, "weight")


def any_ppo_loss(place: Place, draw) -> None:
    (b, t, _), dtype, loss_type = draw(shapes(place)), draw(dtypes(place)), draw(st.sampled_from(sorted(LOSS_TYPES)))
    generator = torch.Generator().manual_seed(draw(seeds))
    noise = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    logp = (noise(b, t) - 3).to(dtype)
    old, advantages = (logp.double() + draw(st.sampled_from([0.1, 5.0, 60.0])) * noise(b, t)).to(dtype), noise(b, t)
    mask = (torch.rand(b, t, generator=generator) < 0.7).float()
    kinds = ["none"] if loss_type == "vespo" else ["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
    options = {
        "loss_type": loss_type, "delta": draw(st.sampled_from([None, 1.5])), "max_tokens": 5, "correction_min": 0.7,
        "correction": draw(st.sampled_from(kinds)), "beta": draw(st.sampled_from([0.0, 0.1])),
        "kl_estimator": draw(st.sampled_from(["k1", "k2", "k3"])),
    }  # fmt: skip
    ref, rollout = ((x.double() + 0.2 * noise(b, t)).to(dtype) for x in (logp, old))
    starts = None
    if draw(st.booleans()):  # packed, one token less in the first sequence
        logp, old, ref, rollout, advantages, mask = (x.flatten()[1:] for x in (logp, old, ref, rollout, advantages, mask))
        starts = torch.arange(0, b * t + 1, t).sub(1).clamp(min=0)
    exact = logp.double().clone().requires_grad_()
    doubled = {"ref_logprobs": ref.double(), "rollout_logprobs": rollout.double(), "cu_seqlens": starts}
    want, wanted = ppo_loss(exact, old.double(), advantages, mask, **doubled, **options)
    want.backward()
    assume((exact.grad.abs() < torch.finfo(dtype).max).all())  # float16 ends at 65504, a ratio at exp(20)
    off = mask == 0
    layout = draw(st.sampled_from(["strided", "contiguous", "odd"]))
    leaf = laid_out(place.move(logp.masked_fill(off, math.nan)), layout).requires_grad_()
    broken = advantages.to(torch.float64 if dtype == torch.float64 else torch.float32).masked_fill(off, math.nan)
    named = {"ref_logprobs": place.move(ref.masked_fill(off, math.nan))}
    named |= {"rollout_logprobs": place.move(rollout.masked_fill(off, math.nan))}
    named |= {"cu_seqlens": None if starts is None else place.move(starts)}
    with place.entered():
        given = place.move(old.masked_fill(off, math.nan)), place.move(broken), place.move(mask)
        loss, _ = ppo_loss(leaf, *given, **named, **options)
        loss.backward()
    assert leaf.grad[place.move(off)].eq(0).all()
    scale = max(1.0, wanted["ratio_max"].item())
    check(loss, want.detach(), LIMIT[dtype] * scale, "loss")
    check(leaf.grad, exact.grad, LIMIT[dtype] * scale, "gradient")


LOSSES = {
    check.__name__: check
    for check in (any_grpo_loss, any_token_logprobs_and_ratio_kl, any_loss_from_hidden_states, any_ppo_loss)
}


def check_any(name: str, place: Place, examples: int) -> None:
    """Check `LOSSES[name]` at `place` for so many drawn inputs."""

    # Inputs are made small only where that takes seconds.
    phases = [phase for phase in Phase if not (place.kernels and phase == Phase.shrink)]

    @settings(max_examples=examples, deadline=None, phases=phases)
    @given(st.data())
    def run(data):
        LOSSES[name](place, data.draw)

    run()
