"""The losses from hidden states on a GPU, against float64 references."""

import pytest
import torch
from support.loss_cases import ROUNDING, VARIANTS, linear_case, options_of, relative

from kernrl.kernels import grpo_loss, linear, linear_cross_entropy, linear_grpo_loss
from kernrl.kernels.grpo import grpo_loss_reference
from kernrl.kernels.over_tokens.tokens import prepare

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize("name", ["plain", "clip", "kl_k3", "gspo", "entropy", "mis", "sequence_mis_on_policy"])
@pytest.mark.parametrize("chunk_rows", [32, 1000])
def test_linear_loss_agrees_with_float64(name, chunk_rows):
    hidden, weight, ids, generator = linear_case(vocab=5008)
    b = 6
    hidden, ids = hidden.view(b, -1, hidden.shape[-1]), ids.view(b, -1)
    mask = torch.rand(ids.shape, generator=generator, device="cuda") < 0.7
    advantages = torch.randn(b, generator=generator, device="cuda")
    advantages[2] = 0
    logp = (hidden @ weight.t()).float().log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    noisy = {key: logp + 0.3 * torch.randn(logp.shape, generator=generator, device="cuda") for key in ("old", "ref", "rollout")}
    options = options_of(VARIANTS[name], mask, advantages, noisy)
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss, _ = linear_grpo_loss(h, w, ids, temperature=1.0, chunk_rows=chunk_rows, **options)
    loss.backward()
    hd, wd = hidden.double().requires_grad_(), weight.double().requires_grad_()
    tokens, config = prepare(ids, 1.0, options)
    want, _ = grpo_loss_reference((hd @ wd.t()).view(-1, weight.shape[0]), tokens, config, 1.0)
    want.backward()
    # The logits themselves are rounded to bfloat16, as in any bfloat16 model: a ratio moves by up to 2^-8 of a logit.
    assert abs(loss - want) < 5e-3 * max(1, abs(want))
    assert relative(h.grad, hd.grad) < 2e-2
    assert relative(w.grad, wd.grad) < 2e-2
    assert (h.grad[~mask] == 0).all()


def test_linear_loss_equals_grpo_loss_on_the_same_logits():
    hidden, weight, ids, _ = linear_case(vocab=32768, n=256)
    advantages = torch.randn(256, device="cuda")
    old = torch.randn(256, device="cuda") - 12
    leaf = (hidden @ weight.t()).requires_grad_()
    want, _ = grpo_loss(leaf * 1, ids, advantages=advantages, old_logprobs=old, temperature=0.9)
    want.backward()
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss, _ = linear_grpo_loss(h, w, ids, advantages=advantages, old_logprobs=old, temperature=0.9, chunk_rows=100)
    loss.backward()
    assert abs(loss - want) < 1e-5
    assert relative(h.grad, leaf.grad.double() @ weight.double()) < ROUNDING[torch.bfloat16]
    assert relative(w.grad, leaf.grad.double().t() @ hidden.double()) < ROUNDING[torch.bfloat16]


def test_weight_grad_accumulates_in_float32():
    hidden, weight, ids, _ = linear_case(vocab=4096)
    advantages = torch.randn(96, device="cuda")
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    linear_grpo_loss(h, w, ids, advantages=advantages, temperature=1.0, chunk_rows=32)[0].backward()
    main = torch.ones_like(weight, dtype=torch.float32)
    h2, w2 = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    linear_grpo_loss(h2, w2, ids, advantages=advantages, temperature=1.0, chunk_rows=32, weight_grad=main)[0].backward()
    assert w2.grad is None
    assert relative(main - 1, w.grad) < ROUNDING[torch.bfloat16]
    assert torch.equal(h.grad, h2.grad)


def test_a_sum_that_is_rounded_after_each_chunk_is_close_to_one_in_float32(monkeypatch):
    monkeypatch.setattr(linear, "EXTRA_BYTES", 128 * 5008 * 2)
    hidden, weight, ids, _ = linear_case(vocab=5008, n=512)
    assert linear.chunks_of(512, weight, None, None) == (128, torch.bfloat16)
    advantages, main = torch.randn(512, device="cuda"), torch.zeros(weight.shape, device="cuda")
    w = weight.clone().requires_grad_()
    for given in (None, main):
        linear_grpo_loss(hidden, w, ids, advantages=advantages, temperature=1.0, weight_grad=given)[0].backward()
    assert relative(w.grad, main) < 2 * ROUNDING[torch.bfloat16]


@pytest.mark.parametrize(("width", "main_grad"), [(1536, False), (1536, True), (3584, False), (4096, False)])
def test_linear_loss_holds_little_above_inputs_and_gradients(width, main_grad):
    hidden, weight, ids, _ = linear_case(n=5000, width=width, vocab=151936)
    h, w = hidden.requires_grad_(), weight.requires_grad_()
    main = torch.zeros(weight.shape, device="cuda") if main_grad else None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    linear_grpo_loss(h, w, ids, advantages=torch.ones(5000, device="cuda"), temperature=1.0, weight_grad=main)[0].backward()
    gradients = hidden.nbytes + (0 if main_grad else weight.nbytes)
    assert torch.cuda.max_memory_allocated() - before - gradients < 1.2 * 2**30


def test_linear_cross_entropy_agrees_with_pytorch():
    hidden, weight, ids, _ = linear_case()
    ids[::5] = -100
    weights = torch.rand(ids.shape, device="cuda")
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss, metrics = linear_cross_entropy(h, w, ids, token_weights=weights, num_tokens=50.0, chunk_rows=32)
    loss.backward()
    hd, wd = hidden.double().requires_grad_(), weight.double().requires_grad_()
    each = torch.nn.functional.cross_entropy(hd @ wd.t(), ids, reduction="none", ignore_index=-100)
    want = (each * weights).sum() / 50
    want.backward()
    assert abs(loss - want) < 2e-3 * want
    assert relative(h.grad, hd.grad) < 1e-2
    assert relative(w.grad, wd.grad) < 1e-2
    assert metrics["tokens"] == (ids != -100).sum()


def test_nothing_to_learn_from_gives_zeros():
    hidden, weight, ids, _ = linear_case()
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss, _ = linear_grpo_loss(h, w, ids, advantages=torch.zeros(96, device="cuda"), temperature=1.0)
    loss.backward()
    assert loss == 0
    assert (h.grad == 0).all()
    assert (w.grad == 0).all()
