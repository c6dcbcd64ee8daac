"""The fused losses on a GPU, against float64 references; `tests/kernels/test_peers.py` compares them with other libraries."""

import math
from types import SimpleNamespace

import pytest
import torch
from support.loss_cases import ROUNDING, VARIANTS, VOCABS, batch, options_of, reference, relative, run

from kernrl.errors import UsageError
from kernrl.integrations.skyrl import ppo_policy_loss_fused
from kernrl.kernels import (
    METRICS,
    check_ids,
    grpo_loss,
    ppo_loss,
    ratio_kl,
    token_logprobs,
)
from kernrl.kernels.over_logits import resident, resident_kernel
from kernrl.kernels.over_tokens.token_loss import LossConfig, policy_loss_reference
from kernrl.kernels.over_tokens.tokens import prepare, with_sequence_correction

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_agrees_with_float64(name):
    logits, ids, mask, advantages, noisy = batch(4, 16, 32768)
    options = options_of(VARIANTS[name], mask, advantages, noisy)
    want_loss, want_metrics, want = reference(logits, ids, options)
    loss, metrics, gradient = run(logits, ids, options)
    assert abs(loss - want_loss) < 1e-5 * max(1, abs(want_loss))
    assert relative(gradient, want) < ROUNDING[torch.bfloat16]
    assert (gradient[~mask] == 0).all()
    for metric in METRICS:
        torch.testing.assert_close(metrics[metric].double(), want_metrics[metric].double(), rtol=2e-5, atol=2e-5, msg=metric)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("vocab", VOCABS)
def test_every_vocabulary_and_dtype_agrees_with_float64(vocab, dtype):
    logits, ids, mask, advantages, noisy = batch(3, 67, vocab, dtype)
    options = options_of(VARIANTS["kl_k3"], mask, advantages, noisy)
    want_loss, want_metrics, want = reference(logits, ids, options)
    loss, metrics, gradient = run(logits, ids, options)
    assert abs(loss - want_loss) < 1e-5
    assert relative(gradient, want) < ROUNDING[dtype]
    assert abs(metrics["entropy"] - want_metrics["entropy"]) < 1e-5
    assert torch.equal(gradient, run(logits, ids, options, inplace=False)[2])


@pytest.mark.parametrize("vocab", [32768, 151936, 50257])
def test_logprobs_are_accurate_in_float32(vocab):
    logits, ids, *_ = batch(2, 33, vocab, torch.float32, scale=5.0)
    logp, entropy = token_logprobs(logits, ids, temperature=0.7)
    exact = (logits.double() / 0.7).log_softmax(-1)
    assert (logp - exact.gather(-1, ids[..., None])[..., 0]).abs().max() < 1e-5
    assert (entropy + (exact.exp() * exact).sum(-1)).abs().max() < 1e-5


@pytest.mark.parametrize("vocab", [32768, 151936, 50257, 4099, 248319, 262144])
def test_hard_rows(vocab):
    """p -> 1, a first tile of -inf, an action of p = e^-150 and one of p = 0, and all that matters in one group of eight."""
    logits, ids, *_ = batch(1, 6, vocab)
    ids[:] = vocab - 77
    logits[0, 0, ids[0, 0]] = 30.0
    logits[0, 1, ids[0, 1]] = 22.0
    logits[0, 2, : vocab // 2] = -math.inf
    logits[0, 3, ids[0, 3]] = -120.0
    logits[0, 4, ids[0, 4]] = -math.inf
    logits[0, 5, ids[0, 5]], logits[0, 5, ids[0, 5] + 1] = 30.0, 22.0
    options = {"advantages": torch.ones(1, 6, device="cuda"), "loss_type": "reinforce", "aggregation": "sum"}
    finite = torch.tensor([0, 1, 2, 3, 5], device="cuda")
    rows, row_ids = logits[:, finite], ids[:, finite]
    options["advantages"] = options["advantages"][:, finite]
    want_loss, _, want = reference(rows, row_ids, options)
    loss, _, gradient = run(rows, row_ids, options)
    assert abs(loss / want_loss - 1) < 1e-5
    for i in range(len(finite)):
        assert relative(gradient[0, i], want[0, i]) < ROUNDING[torch.bfloat16], f"row {i}"
    logp, entropy = token_logprobs(logits, ids, temperature=0.8)
    assert logp[0, 4] == -math.inf
    assert entropy.isfinite().all()


@pytest.mark.parametrize("vocab", [32768, 50257, 4099, 248319])
def test_masked_rows_may_hold_anything(vocab):
    logits, ids, mask, advantages, noisy = batch(2, 20, vocab)
    options = options_of(VARIANTS["kl_k3"], mask, advantages, noisy)
    _, _, want = run(logits, ids, options)
    logits[~mask], ids[~mask] = math.nan, -100
    for values in noisy.values():
        values[~mask] = math.nan
    loss, metrics, gradient = run(logits, ids, options_of(VARIANTS["kl_k3"], mask, advantages, noisy))
    assert loss.isfinite()
    assert torch.equal(gradient, want)
    assert all(value.isfinite() for value in metrics.values())
    check_ids()


@pytest.mark.parametrize("vocab", [32768, 151936, 50257, 4099, 248319])
def test_a_nan_in_an_active_row_shows(vocab):
    logits, ids, *_ = batch(1, 6, vocab)
    logits[0, 2, (ids[0, 2] + vocab // 3) % vocab] = math.nan
    logp, _ = token_logprobs(logits, ids, temperature=0.8)
    assert logp.isnan().tolist() == [[False, False, True, False, False, False]]
    loss, _, gradient = run(logits, ids, {"advantages": torch.ones(1, device="cuda")})
    assert loss.isnan()
    assert gradient[0, 2].isnan().all()
    assert gradient[0, [0, 1, 3, 4, 5]].isfinite().all()


@pytest.mark.parametrize("vocab", [32768, 50257, 262144])
def test_an_invalid_active_id_is_an_error(vocab):
    logits, ids, *_ = batch(1, 4, vocab)
    ids[0, 2] = vocab
    loss, _, _ = run(logits, ids, {"advantages": torch.ones(1, device="cuda")})
    assert loss.isnan()
    with pytest.raises(UsageError, match="outside the vocabulary"):
        check_ids()
    check_ids()  # the flag is lowered


def _scattered(n: int) -> torch.Tensor:
    return torch.rand(n, generator=torch.Generator("cuda").manual_seed(5), device="cuda") < 0.25


WHICH_COUNT = {
    "none": lambda at: at < 0, "the first": lambda at: at < 300, "the last": lambda at: at == len(at) - 1,
    "some": lambda at: _scattered(len(at)), "all": lambda at: at >= 0,
}  # fmt: skip


@pytest.mark.parametrize("which", WHICH_COUNT)
@pytest.mark.parametrize("vocab", [32768, 50257, 151936, 262144])
def test_where_the_rows_lie_that_count_changes_nothing(vocab, which):
    """Rows that count get the gradient that they have without the others, which get 0. A program reads at most 4,096 values of
    a mask at a time: there are more."""
    n = 4500
    logits = torch.empty(1, n, vocab, dtype=torch.bfloat16, device="cuda").normal_()
    ids = torch.randint(0, vocab, (1, n), device="cuda")
    advantages, mask = torch.randn(1, n, device="cuda"), WHICH_COUNT[which](torch.arange(n, device="cuda"))
    options = {"loss_type": "reinforce", "num_tokens": 7.0, "advantages": advantages, "mask": mask[None]}
    _, _, gradient = run(logits, ids, options)
    assert (gradient[0, ~mask] == 0).all()
    if mask.any():
        alone = {**options, "advantages": advantages[:, mask], "mask": None}
        _, _, want = run(logits[:, mask], ids[:, mask], alone)
        if vocab * 2 % resident.LINE_BYTES:  # rows of an odd length are summed by groups, which start elsewhere
            assert relative(gradient[0, mask], want[0]) < ROUNDING[torch.bfloat16]
        else:
            assert torch.equal(gradient[0, mask], want[0])


def test_all_masked_gives_zero():
    logits, ids, mask, advantages, _ = batch(1, 4, 32768)
    loss, metrics, gradient = run(logits, ids, {"advantages": advantages, "mask": torch.zeros_like(mask)})
    assert loss == 0
    assert (gradient == 0).all()
    assert metrics["tokens"] == 0


@pytest.mark.parametrize("vocab", [32768, 50257, 262144])
def test_runs_are_bitwise_the_same(vocab):
    logits, ids, mask, advantages, noisy = batch(4, 100, vocab)
    options = options_of(VARIANTS["kl_k3"], mask, advantages, noisy)
    first, _, gradient = run(logits, ids, options)
    for _ in range(3):
        again, _, other = run(logits, ids, options)
        assert torch.equal(first, again)
        assert torch.equal(gradient, other)


@pytest.mark.parametrize("vocab", [32768, 50257])
def test_beyond_int32_elements_and_65535_tokens(vocab):
    n = 70_000
    logits = torch.empty(n, vocab, dtype=torch.bfloat16, device="cuda").normal_()
    ids = torch.randint(0, vocab, (n,), device="cuda")
    last = logits[-64:].clone()
    options = {"advantages": torch.ones(n, device="cuda"), "loss_type": "reinforce", "aggregation": "sum"}
    leaf = logits.requires_grad_()
    loss, _ = grpo_loss(leaf.view(1, n, vocab), ids.view(1, n), temperature=1.0, **{**options, "advantages": torch.ones(1, n)
                        .cuda()})  # fmt: skip
    loss.backward()
    options["advantages"] = torch.ones(64, device="cuda")
    _, _, want = reference(last, ids[-64:], options, temperature=1.0)
    assert relative(leaf.grad[-64:], want) < ROUNDING[torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("vocab", [4099, 50257, 201087, 248320])
def test_the_edges_of_rows(vocab, dtype):
    """The action in every position of a row's first and last groups, at every offset of a row from 16 bytes; 600 rows, so that
    every program has several. What lies around the logits is not touched."""
    n, cases = 600, 40
    logits, _, _, _, _ = batch(1, n, vocab, dtype)
    edges = torch.arange(cases, device="cuda") - cases // 2
    ids = edges[torch.arange(n, device="cuda") * 7 % cases].remainder(vocab)[None]
    options = {"advantages": torch.randn(1, n, device="cuda"), "loss_type": "reinforce", "aggregation": "sum"}
    around = torch.full((n * vocab + 64,), 7.0, device="cuda", dtype=dtype)
    rows = around[32 : 32 + n * vocab].view(1, n, vocab)
    rows.copy_(logits)
    loss, _ = grpo_loss(rows.requires_grad_(), ids, temperature=0.8, **options)
    loss.backward()
    assert (around[:32] == 7).all()
    assert (around[-32:] == 7).all()
    for i in range(0, n, 100):
        part = slice(i, i + 100)
        chosen = {**options, "advantages": options["advantages"][:, part]}
        _, _, want = reference(logits[:, part], ids[:, part], chosen)
        error = (rows.grad[:, part].double() - want).norm(dim=-1) / want.norm(dim=-1)
        assert error.max() < 2 * ROUNDING[dtype]


def test_a_new_length_compiles_nothing():
    def compiled():
        return sum(len(cache[0]) for cache in resident_kernel._resident_kernel.device_caches.values())

    for t in (16, 48, 33, 70, 17):
        logits, ids, mask, advantages, noisy = batch(2, t, 32768)
        run(logits, ids, options_of(VARIANTS["clip"], mask, advantages, noisy))
        if t == 16:
            before = compiled()
    assert compiled() == before


def test_nothing_waits_for_the_gpu():
    logits, ids, mask, advantages, noisy = batch(2, 16, 32768)
    options = options_of(VARIANTS["kl_k3"], mask, advantages, noisy)
    run(logits, ids, options)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(logits, ids, options)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_inplace_takes_no_memory_and_destroyed_logits_are_refused():
    logits, ids, *_ = batch(8, 64, 32768)
    whole = logits.detach().requires_grad_() * 1
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss, _ = grpo_loss(whole, ids, advantages=torch.ones(8, device="cuda"), temperature=1.0)
    assert torch.cuda.max_memory_allocated() - before < 1 << 20
    with pytest.raises(RuntimeError, match="after grpo_loss overwrote"):
        (loss + whole.float().logsumexp(-1).sum()).backward()

    whole = logits.detach().requires_grad_() * 1
    earlier = whole.exp().sum() + (whole * whole).sum()
    loss, _ = grpo_loss(whole, ids, advantages=torch.ones(8, device="cuda"), temperature=1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (loss + earlier).backward()

    kept = logits.detach().requires_grad_() * 1
    loss, _ = grpo_loss(kept, ids, advantages=torch.ones(8, device="cuda"), temperature=1.0, inplace=False)
    assert torch.equal(kept.detach(), logits)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()


def test_the_upstream_gradient_scales():
    logits, ids, mask, advantages, noisy = batch(2, 16, 32768, torch.float32)
    options = options_of(VARIANTS["clip"], mask, advantages, noisy)
    _, _, want = run(logits, ids, options)
    leaf = logits.clone().requires_grad_()
    (grpo_loss(leaf * 1, ids, temperature=0.8, **options)[0] * 0.25).backward()
    torch.testing.assert_close(leaf.grad, want * 0.25)


@pytest.mark.parametrize("vocab", [32768, 50257, 262144])
def test_ratio_kl_agrees_with_float64(vocab):
    logits, ids, mask, _, noisy = batch(2, 20, vocab, torch.float32)
    other = logits + 0.1 * torch.randn_like(logits)
    ids[~mask] = -100
    weights = torch.randn(2, *ids.shape, device="cuda")
    grads, outs = [], []
    for dtype, device in ((torch.float32, "cuda"), (torch.float64, "cpu")):
        leaf = logits.detach().to(device, dtype, copy=True).requires_grad_()
        args = (other.to(device, dtype), ids.to(device), mask.to(device), noisy["old"].to(device, dtype))
        ratio, kl = ratio_kl(leaf, *args, temperature=0.8)
        (ratio * weights[0].to(device) + kl * weights[1].to(device)).sum().backward()
        outs.append((ratio, kl))
        grads.append(leaf.grad.cpu())
    for got, want in zip(outs[0], outs[1], strict=True):
        torch.testing.assert_close(got.cpu().double(), want, rtol=2e-5, atol=2e-6)
    assert relative(grads[0], grads[1]) < 1e-5


def test_calls_on_two_streams_do_not_meet():
    logits, ids, mask, advantages, noisy = batch(4, 100, 201088)
    options = options_of(VARIANTS["kl_k3"], mask, advantages, noisy)
    want = run(logits, ids, options)
    streams = [torch.cuda.Stream() for _ in range(2)]
    copies = [[logits.clone().requires_grad_() for _ in range(5)] for _ in streams]
    torch.cuda.synchronize()
    for i in range(5):
        for stream, leaves in zip(streams, copies, strict=True):
            with torch.cuda.stream(stream):
                grpo_loss(leaves[i], ids, temperature=0.8, inplace=False, **options)[0].backward()
    torch.cuda.synchronize()
    assert all(torch.equal(leaf.grad, want[2]) for leaves in copies for leaf in leaves)


def test_a_graph_can_be_replayed():
    logits, ids, mask, advantages, noisy = batch(4, 100, 201088)
    options = options_of(VARIANTS["kl_k3"], mask, advantages, noisy)
    want_loss, _, want = run(logits, ids, options)
    static, side = logits.clone(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(logits, ids, options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        leaf = static.detach().requires_grad_()
        loss, _ = grpo_loss(leaf, ids, temperature=0.8, inplace=False, **options)
        loss.backward()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(loss, want_loss)
    assert torch.equal(leaf.grad, want)


def test_entropy_is_differentiable():
    logits, ids, *_ = batch(1, 5, 5000, torch.float32)
    leaf, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    token_logprobs(leaf, ids, temperature=0.7)[1].sum().backward()
    logp = (exact / 0.7).log_softmax(-1)
    (-(logp.exp() * logp).sum()).backward()
    assert relative(leaf.grad, exact.grad) < 1e-5


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "entropy"])
def test_ppo_loss_agrees_with_float64(name):
    _, ids, mask, advantages, noisy = batch(4, 50, 1000)
    options = options_of(VARIANTS[name], mask, advantages, noisy)
    logp = noisy["old"] + 0.3 * torch.randn_like(noisy["old"])
    old = options.pop("old_logprobs", noisy["old"])
    options.pop("mask")
    leaf, exact = logp.clone().requires_grad_(), logp.double().requires_grad_()
    loss, _ = ppo_loss(leaf, old, options.pop("advantages"), mask, **options)
    loss.backward()
    tokens, config = prepare(ids, 1.0, {**options, "advantages": advantages, "old_logprobs": old, "mask": mask})
    flat = exact.view(-1)
    tokens = with_sequence_correction(tokens, flat.detach().float(), config)
    want, _ = policy_loss_reference(flat, torch.zeros_like(flat), tokens, config)
    want.backward()
    assert abs(loss - want) < 1e-5
    assert relative(leaf.grad, exact.grad) < 1e-5


def test_the_skyrl_adapter_agrees_with_its_cpu_path_and_waits_once():
    _, _, mask, _, noisy = batch(4, 50, 1000)
    config = SimpleNamespace(
        policy_loss_type="dual_clip", eps_clip_low=0.1, eps_clip_high=0.2, clip_ratio_c=1.3, loss_reduction="sequence_mean",
        use_tis=True, tis_imp_ratio_cap=1.1,
    )  # fmt: skip
    advantages, given = torch.randn(4, 50, device="cuda"), (noisy["ref"], noisy["old"])
    loss, clipped = ppo_policy_loss_fused(*given, advantages, config, mask, noisy["rollout"])
    on_cpu = [x.cpu().double() for x in (*given, advantages, mask, noisy["rollout"])]
    want, want_clipped = ppo_policy_loss_fused(*on_cpu[:3], config, *on_cpu[3:])
    assert abs(loss.item() - want.item()) < 1e-5
    assert clipped == pytest.approx(want_clipped, abs=1e-5)


def test_a_config_without_old_logprobs_is_on_policy():
    logits, ids, mask, advantages, _ = batch(2, 16, 32768)
    _, metrics, gradient = run(logits, ids, {"advantages": advantages, "mask": mask})
    _, _, plain = run(logits, ids, {"advantages": advantages, "mask": mask, "loss_type": "reinforce"})
    assert metrics["ratio_max"] == 1
    assert torch.equal(gradient, plain)
    assert LossConfig().clip_high == 0.2
