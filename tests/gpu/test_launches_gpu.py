"""What each loss asks of the GPU, to the last device operation.

Where a function calls PyTorch beside its kernels (matrix products, and the rows that count), the names are those of the same
expressions by themselves, which libraries choose.
"""

from collections.abc import Callable

import pytest
import torch
from support.loss_cases import VARIANTS, batch, linear_case, options_of

from kernrl.kernels import grpo_loss, linear_cross_entropy, linear_grpo_loss, ppo_loss, ratio_kl, token_logprobs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


def device_operations(run: Callable[[], object]) -> list[str]:
    """The names of what the GPU was asked to do in `run`, in order."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [event.name for event in sorted(events, key=lambda event: event.time_range.start)]


LOGPROB_VARIANTS = [name for name in VARIANTS if name not in ("entropy", "plain")]


@pytest.mark.parametrize("name", LOGPROB_VARIANTS)
def test_ppo_loss_is_one_launch_forward_and_one_backward(name):
    _, _, mask, advantages, noisy = batch(4, 48, 1000)
    options = options_of({"old": True, **VARIANTS[name]}, mask, advantages, noisy)
    old, a = options.pop("old_logprobs"), options.pop("advantages")
    leaf, one = (noisy["old"] + 0.1).requires_grad_(), torch.ones((), device="cuda")
    del options["mask"]

    def run():
        leaf.grad = None
        ppo_loss(leaf, old, a, mask, **options)[0].backward(one)

    assert device_operations(run) == ["_tokens_kernel", "_scale_kernel"]
    cu = torch.arange(0, 4 * 48 + 1, 48, device="cuda")
    flat = {key: value.reshape(-1) if torch.is_tensor(value) else value for key, value in options.items()}
    packed = leaf.detach().reshape(-1).requires_grad_()

    def run_packed():
        packed.grad = None
        ppo_loss(packed, old.view(-1), a, mask.view(-1), cu_seqlens=cu, **flat)[0].backward(one)

    assert device_operations(run_packed) == ["_tokens_kernel", "_scale_kernel"]
    run()
    torch.testing.assert_close(packed.grad.view_as(leaf), leaf.grad, rtol=1e-5, atol=1e-8)


COUNTED_BY_NOBODY = ("global_count", "dr_grpo")  # whose number of tokens is given, or no matter
BY_LENGTH = ("sapo", "sequence_mean")
BY_SEQUENCE = ("gspo", "luspo", "vespo", "gmpo", "sequence_mis_on_policy")  # three passes over the logits
VOCABS = [4096, 4099, 32768, 50257, 262144]  # the first two are too short for the kernel that holds a row on chip


def launches_of(name: str, vocab: int) -> list[str]:
    if name in BY_SEQUENCE:
        return ["_stats_kernel", "_tokens_kernel", "_gradient_kernel", "_scale_kernel"]
    before = ["_shares_kernel"] if name in BY_LENGTH else [] if name in COUNTED_BY_NOBODY else ["_count_kernel"]
    if name in ("sequence_tis", "together"):
        before.append("_shares_kernel")
    return [*before, "_loss_kernel" if vocab < 16384 else "_resident_kernel", "_tokens_kernel", "_scale_kernel"]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("vocab", VOCABS)
def test_grpo_loss_launches_exactly_these(name, vocab, inplace):
    logits, ids, mask, advantages, noisy = batch(4, 16, vocab)
    options, one = options_of(VARIANTS[name], mask, advantages, noisy), torch.ones((), device="cuda")
    leaf = logits.requires_grad_()

    def run():
        leaf.grad = None
        grpo_loss(leaf, ids, temperature=0.8, inplace=inplace, **options)[0].backward(one)

    assert device_operations(run) == launches_of(name, vocab)


@pytest.mark.parametrize("name", VARIANTS)
def test_grpo_loss_without_a_gradient_launches_two(name):
    logits, ids, mask, advantages, noisy = batch(4, 16, 4096)
    options = options_of(VARIANTS[name], mask, advantages, noisy)
    operations = device_operations(lambda: grpo_loss(logits, ids, temperature=0.8, **options))
    assert operations == ["_stats_kernel", "_tokens_kernel"]


@pytest.mark.parametrize("vocab", VOCABS)
def test_ratio_kl_is_one_launch_each_way(vocab):
    logits, ids, mask, _, noisy = batch(2, 20, vocab)
    leaf, weights = logits.clone().requires_grad_(), (torch.randn(2, 20, device="cuda"), torch.randn(2, 20, device="cuda"))

    def run():
        leaf.grad = None
        torch.autograd.backward(ratio_kl(leaf, logits, ids, mask, noisy["old"], temperature=0.8), weights)

    assert device_operations(run) == ["_forward_kernel", "_backward_kernel"]
    assert device_operations(lambda: ratio_kl(logits, logits, ids, mask, noisy["old"])) == ["_forward_kernel"]


COPY = "Memcpy DtoD (Device -> Device)"


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("vocab", VOCABS)
def test_token_logprobs_is_one_launch_each_way(vocab, masked):
    logits, ids, mask, *_ = batch(2, 20, vocab)
    mask = mask if masked else None
    assert device_operations(lambda: token_logprobs(logits, ids, temperature=0.8, mask=mask)) == ["_stats_kernel"]
    leaf, weights = logits.clone().requires_grad_(), (torch.randn(2, 20, device="cuda"), torch.randn(2, 20, device="cuda"))

    def run(outputs):
        leaf.grad = None
        results = token_logprobs(leaf, ids, temperature=0.8, mask=mask)
        torch.autograd.backward(results[:outputs], weights[:outputs])

    # What is kept for backward is not what the caller gets, who may write into it.
    expected = ["_stats_kernel", COPY, COPY, "_gradient_kernel"]
    assert device_operations(lambda: run(1)) == expected  # log-probs alone
    assert device_operations(lambda: run(2)) == expected  # with the entropies' gradient


def linear_batch(n: int, vocab: int):
    hidden, weight, ids, generator = linear_case(n=n, vocab=vocab)
    logp = (hidden @ weight.t()).float().log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    advantages = torch.randn(n, generator=generator, device="cuda")
    return hidden, weight, ids, advantages, logp


def product_of(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, add: bool = False) -> list[str]:
    """Of `a @ b` in `dtype`, and of `total += a @ b`."""
    out = torch.zeros(a.shape[0], b.shape[1], dtype=dtype, device="cuda")
    more = {} if dtype == a.dtype else {"out_dtype": dtype}
    if add:
        return device_operations(lambda: torch.addmm(out, a, b, out=out, **more))
    return device_operations(lambda: torch.mm(a, b, out=out, **more))


def products(hidden, weight, total: torch.dtype | None = None, add: bool = False) -> tuple[list[str], list[str]]:
    """(of the logits, of both gradients): a linear layer's three products, the weight's gradient in dtype `total`."""
    logits = torch.zeros(hidden.shape[0], weight.shape[0], dtype=hidden.dtype, device="cuda")
    to_weight = product_of(logits.t(), hidden, total or weight.dtype, add)
    return product_of(hidden, weight.t(), hidden.dtype), [*product_of(logits, weight, hidden.dtype), *to_weight]


def run_linear(loss, hidden, weight, *args, **options) -> Callable[[], None]:
    h, w, one = hidden.clone().requires_grad_(), weight.clone().requires_grad_(), torch.ones((), device="cuda")

    def run():
        h.grad = w.grad = None
        loss(h, w, *args, **options)[0].backward(one)

    return run


LINEAR = {"_loss_kernel": 5008, "_resident_kernel": 32768}  # and a vocabulary that leads to it
SCALE = "_scale_kernel"


def with_kl(advantages, logp) -> dict:
    return {"advantages": advantages, "old_logprobs": logp, "ref_logprobs": logp, "beta": 0.1, "temperature": 1.0}


@pytest.mark.parametrize("kernel", LINEAR)
def test_linear_grpo_loss_with_a_kl_is_three_products_and_four_launches(kernel):
    hidden, weight, ids, advantages, logp = linear_batch(96, LINEAR[kernel])
    run = run_linear(linear_grpo_loss, hidden, weight, ids, **with_kl(advantages, logp))
    to_logits, to_gradients = products(hidden, weight)
    assert device_operations(run) == [*to_logits, kernel, *to_gradients, "_tokens_kernel", SCALE, SCALE]


@pytest.mark.parametrize("kernel", LINEAR)
def test_linear_grpo_loss_into_a_main_gradient_scales_one_gradient(kernel):
    hidden, weight, ids, advantages, logp = linear_batch(96, LINEAR[kernel])
    main = torch.zeros(weight.shape, device="cuda")
    run = run_linear(linear_grpo_loss, hidden, weight, ids, weight_grad=main, **with_kl(advantages, logp))
    to_logits, to_gradients = products(hidden, weight, torch.float32, add=True)
    assert device_operations(run) == [*to_logits, kernel, *to_gradients, "_tokens_kernel", SCALE]


@pytest.mark.parametrize("kernel", LINEAR)
def test_linear_grpo_loss_in_two_chunks_adds_to_the_weights_gradient(kernel):
    hidden, weight, ids, advantages, logp = linear_batch(96, LINEAR[kernel])
    run = run_linear(linear_grpo_loss, hidden, weight, ids, chunk_rows=48, **with_kl(advantages, logp))
    to_logits, first = products(hidden[:48], weight)
    _, second = products(hidden[:48], weight, add=True)
    assert device_operations(run) == [
        *to_logits, kernel, *first, *to_logits, kernel, *second, "_tokens_kernel", SCALE, SCALE
    ]  # fmt: skip


@pytest.mark.parametrize("kernel", LINEAR)
def test_linear_grpo_loss_in_many_chunks_rounds_the_weights_gradient_once(kernel):
    hidden, weight, ids, advantages, logp = linear_batch(96, LINEAR[kernel])
    run = run_linear(linear_grpo_loss, hidden, weight, ids, chunk_rows=16, **with_kl(advantages, logp))
    to_logits, first = products(hidden[:16], weight, torch.float32)
    _, further = products(hidden[:16], weight, torch.float32, add=True)
    total = torch.zeros(weight.shape, device="cuda")
    rounding = device_operations(lambda: total.to(weight.dtype))
    assert device_operations(run) == [
        *to_logits, kernel, *first, *5 * [*to_logits, kernel, *further], "_tokens_kernel", *rounding, SCALE, SCALE
    ]  # fmt: skip


def rows_that_are(*, found: bool) -> list[str]:
    """Of the indices of 96 rows, all of them or none."""
    rows = torch.full((96,), found, device="cuda")
    return device_operations(lambda: rows.nonzero())


def compare_with_zero(equal: bool) -> list[str]:
    values = torch.ones(96, device="cuda")
    return device_operations(lambda: values == 0 if equal else values != 0)


def rows_of_zeros() -> list[str]:
    """Of asking which rows of a chunk have no gradient, where every row has one."""
    none = torch.zeros(96, dtype=torch.bool, device="cuda")
    return [*compare_with_zero(equal=True), *device_operations(lambda: ~none), *rows_that_are(found=True)]


@pytest.mark.parametrize("kernel", LINEAR)
def test_linear_grpo_loss_that_leaves_out_no_row_only_asks_for_their_number(kernel):
    """Without a KL, rows of advantage 0 and clipped rows are looked for; here there are none."""
    hidden, weight, ids, advantages, logp = linear_batch(96, LINEAR[kernel])
    options = {"advantages": advantages, "old_logprobs": logp, "epsilon_low": 0.99, "epsilon_high": 1e9, "temperature": 1.0}
    to_logits, to_gradients = products(hidden, weight)
    assert device_operations(run_linear(linear_grpo_loss, hidden, weight, ids, **options)) == [
        *compare_with_zero(equal=False), *rows_that_are(found=True), *to_logits, kernel, *rows_of_zeros(), *to_gradients,
        "_tokens_kernel", SCALE, SCALE,
    ]  # fmt: skip


@pytest.mark.parametrize("loss_type", ["gspo", "luspo", "vespo", "gmpo"])
def test_linear_grpo_loss_by_sequence_makes_its_logits_twice(loss_type):
    hidden, weight, ids, advantages, logp = linear_batch(96, 5008)
    options = {"advantages": advantages.view(4, 24)[:, :1].expand(4, 24).contiguous(), "old_logprobs": logp.view(4, 24)}
    options |= {"loss_type": loss_type, "aggregation": "sum", "temperature": 1.0, "epsilon_low": 0.99, "epsilon_high": 1e9}
    run = run_linear(linear_grpo_loss, hidden.view(4, 24, -1), weight, ids.view(4, 24), **options)
    to_logits, to_gradients = products(hidden, weight)
    starts = device_operations(lambda: torch.arange(0, 97, 24, device="cuda"))
    clipped = rows_of_zeros() if loss_type in ("gspo", "luspo") else []
    assert device_operations(run) == [
        *starts, *to_logits, "_stats_kernel", COPY, COPY, "_tokens_kernel", *to_logits, COPY, "_stats_kernel",
        "_gradient_kernel", *clipped, *to_gradients, SCALE, SCALE,
    ]  # fmt: skip


@pytest.mark.parametrize("kernel", LINEAR)
def test_linear_cross_entropy_asks_for_its_targets_and_makes_three_products(kernel):
    hidden, weight, ids, *_ = linear_batch(96, LINEAR[kernel])
    to_logits, to_gradients = products(hidden, weight)
    mask = torch.ones(96, dtype=torch.bool, device="cuda")
    weights = device_operations(lambda: torch.ones_like(ids, dtype=torch.float32))
    counted = device_operations(lambda: ids != -100)
    count = device_operations(lambda: mask.sum().clamp(min=1).to(torch.float32))
    both = device_operations(lambda: mask & mask)
    assert device_operations(run_linear(linear_cross_entropy, hidden, weight, ids)) == [
        *weights, *counted, *count, *compare_with_zero(equal=False), *both, *rows_that_are(found=True), *to_logits, kernel,
        *to_gradients, "_tokens_kernel", SCALE, SCALE,
    ]  # fmt: skip


def test_token_logprobs_of_hidden_states_is_a_product_and_a_launch_a_chunk():
    hidden, weight, ids, *_ = linear_batch(96, 5008)
    chunk = [*product_of(hidden[:48], weight.t(), hidden.dtype), "_stats_kernel", COPY, COPY]
    run = lambda: token_logprobs(hidden, ids, temperature=1.0, lm_head_weight=weight, chunk_rows=48)  # noqa: E731
    assert device_operations(run) == chunk * 2
