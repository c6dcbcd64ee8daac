"""The CPU replay computes what the kernels say, and sees what a GPU would only corrupt."""
# ruff: noqa: E501  (programs are quoted as models write them)

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import EXHAUSTIVE
from support.front import HEAD, dense, interpret, module, plan_of, spec
from support.suite import read_folder

from kernrl.verifier.base.nested import flatten
from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.interpret import narrow_products
from kernrl.verifier.interpret.interpret_server import sources
from kernrl.verifier.interpret.interpreter import Case, interpret_cases
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.plan.plan import Plan
from kernrl.verifier.trace.reference_spec import spec_of

torch.set_num_threads(1)


def planned(source: str, *tensors: torch.Tensor) -> Plan:
    return plan_of(source, spec(*(dense(*t.shape, dtype=str(t.dtype).removeprefix("torch.")) for t in tensors)))


def run(source: str, *tensors: torch.Tensor, **kwargs) -> Any:
    return interpret(planned(source, *tensors), dict(enumerate(tensors)), **kwargs)


def kernel(
    body: str, args: str = "x, y, n", call: str = "x, y, x.numel(), B=64", grid: str = "(4,)", out: str = "torch.empty_like(x)"
) -> str:
    lines = "\n    ".join(body.strip().splitlines())
    return f"""{HEAD}
@triton.jit
def k({args}, B: tl.constexpr):
    {lines}
class ModelNew(nn.Module):
    def forward(self, x):
        y = {out}
        k[{grid}]({call})
        return y
"""


X = torch.linspace(-3, 3, 256).reshape(8, 32).roll(7, 0)
FLAT = "i = tl.program_id(0) * B + tl.arange(0, B)\nv = tl.load(x + i, mask=i < n)\n"


POINTWISE = {
    "exp": ("tl.exp(v)", torch.exp),
    "gelu": ("0.5 * v * (1 + tl.erf(v * 0.7071067811865476))", F.gelu),
    "sigmoid": ("tl.sigmoid(v)", torch.sigmoid),
    "silu by exp": ("v / (1 + tl.exp(-v))", F.silu),
    "clamp": ("tl.clamp(v, -1.0, 1.5)", lambda v: v.clamp(-1, 1.5)),
    "relu by where": ("tl.where(v > 0, v, 0.0)", torch.relu),
    "abs, floor, sqrt": ("tl.sqrt(tl.abs(tl.floor(v)))", lambda v: v.floor().abs().sqrt()),
    "log, sin, cos": ("tl.log(v * v + 1) + tl.sin(v) - tl.cos(v)", lambda v: (v * v + 1).log() + v.sin() - v.cos()),
    "integers": ("((i // 3) % 5 + (i ^ 3) - (i << 1) + (i >> 2)).to(tl.float32)", lambda v: _integers()),
    "compare": ("((v >= 0.5) & (v < 2) | (v != v)).to(tl.float32)", lambda v: ((v >= 0.5) & (v < 2)).float()),
    "to int": ("v.to(tl.int32).to(tl.float32)", torch.trunc),
    "half and back": ("v.to(tl.float16).to(tl.float32)", lambda v: v.half().float()),
    "bfloat16 and back": ("v.to(tl.bfloat16).to(tl.float32)", lambda v: v.bfloat16().float()),
    "tanh of libdevice": ("tl.extra.cuda.libdevice.tanh(v)", torch.tanh),
    "minimum and maximum": ("tl.minimum(tl.maximum(v, -1.0), 1.0)", lambda v: v.clamp(-1, 1)),
    "functions of libdevice": (
        "LIB.expm1(v) + LIB.log1p(tl.abs(v)) + LIB.pow(tl.abs(v) + 1, 1.5) + LIB.rsqrt(v * v + 1) + LIB.erf(v) + LIB.fast_expf(v)"
        " + LIB.cbrt(v) + LIB.fdim(v, 0.5) + LIB.rint(v) + LIB.round(v) + LIB.saturatef(v) + LIB.div_rn(v, 3.0) + LIB.hypot(v, 2.0)",
        lambda v: sum(
            (
                v.double().expm1(),
                v.double().abs().log1p(),
                (v.double().abs() + 1) ** 1.5,
                (v.double() ** 2 + 1).rsqrt(),
                v.double().erf(),
                v.double().exp(),
                v.double().sign() * v.double().abs() ** (1 / 3),
                (v.double() - 0.5).clamp(min=0),
                v.round(),
                v.sign() * (v.abs() + 0.5).floor(),
                v.clamp(0, 1),
                v.double() / 3,
                (v.double() ** 2 + 4).sqrt(),
            )
        ).float(),
    ),
    "conversions of libdevice": (
        "(LIB.float2int_rd(v) * 8 + LIB.float2int_ru(v) + LIB.llrint(v)).to(tl.float32) + LIB.int_as_float(LIB.float_as_int(v))",
        lambda v: v.floor() * 8 + v.ceil() + v.round() + v,
    ),
    "toward zero": ("v.to(tl.bfloat16, fp_downcast_rounding='rtz').to(tl.float32)", lambda v: _cut(v)),
    "fma": ("tl.fma(v, v, v)", lambda v: v * v + v),
}


def _cut(v: torch.Tensor) -> torch.Tensor:
    return (v.view(torch.int32) & ~0xFFFF).view(torch.float32)


def _integers() -> torch.Tensor:
    i = torch.arange(256)
    return ((i // 3) % 5 + (i ^ 3) - (i << 1) + (i >> 2)).float().reshape(8, 32)


@pytest.mark.slow
@pytest.mark.parametrize(("expression", "want"), POINTWISE.values(), ids=POINTWISE.keys())
def test_pointwise(expression, want):
    expression = expression.replace("LIB.", "tl.extra.cuda.libdevice.")
    (got,) = run(kernel(FLAT + f"tl.store(y + i, {expression}, mask=i < n)"), X)
    torch.testing.assert_close(got, want(X), rtol=3e-6, atol=1e-6)


ROWS = "r = tl.program_id(0)\ni = tl.arange(0, B)\nv = tl.load(x + r * B + i)\n"
REDUCED = {
    "sum": ("tl.sum(v, 0)", lambda v: v.sum(1)),
    "max": ("tl.max(v, 0)", lambda v: v.amax(1)),
    "min": ("tl.min(v, 0)", lambda v: v.amin(1)),
    "argmax": ("tl.argmax(v, 0).to(tl.float32)", lambda v: v.argmax(1).float()),
    "product": ("tl.reduce(v, 0, multiply)", lambda v: v.prod(1)),
    "last of a scan": ("tl.sum(tl.where(i == B - 1, tl.cumsum(v, 0), 0.0), 0)", lambda v: v.sum(1)),
    "log of a sum": ("tl.log(tl.sum(tl.exp(v - tl.max(v, 0)), 0)) + tl.max(v, 0)", lambda v: v.logsumexp(1)),
}  # fmt: skip


@pytest.mark.parametrize(("expression", "want"), REDUCED.values(), ids=REDUCED.keys())
def test_reductions(expression, want):
    source = kernel(
        ROWS + f"tl.store(y + r, {expression})", call="x, y, 1, B=32", grid="(8,)", out="torch.empty(8, device='cuda')"
    )
    source = source.replace("@triton.jit\ndef k", "@triton.jit\ndef multiply(a, b):\n    return a * b\n@triton.jit\ndef k")
    (got,) = run(source, X)
    torch.testing.assert_close(got, want(X), rtol=1e-5, atol=1e-5)


def test_scans_and_two_dimensions():
    body = (
        "m, i = tl.arange(0, 8)[:, None], tl.arange(0, B)[None, :]\nv = tl.load(x + m * B + i)\n"
        "tl.store(y + m * B + i, tl.cumsum(v, 1) + tl.sum(tl.trans(v), 0)[:, None])"
    )
    (got,) = run(kernel(body, call="x, y, 1, B=32", grid="(1,)"), X)
    torch.testing.assert_close(got, X.cumsum(1) + X.sum(1, keepdim=True), rtol=1e-5, atol=1e-5)


def test_loops_whose_length_differs_between_programs():
    body = (
        "r = tl.program_id(0)\ni = tl.arange(0, B)\nacc = tl.zeros((B,), tl.float32)\nfor s in range(r):\n"
        "    acc += tl.load(x + s * B + i)\ntl.store(y + r * B + i, acc)"
    )
    (got,) = run(kernel(body, call="x, y, 1, B=32", grid="(8,)"), X)
    want = torch.stack([X[:r].sum(0) for r in range(8)])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_branches_whiles_and_early_returns():
    body = (
        "r = tl.program_id(0)\nif r == 7:\n    return\ni = tl.arange(0, B)\nv = tl.load(x + r * B + i)\nk = r\nwhile k > 0:\n    v = v * 0.5\n    k -= 2\n"
        "if r % 2 == 0:\n    v += 1.0\nelse:\n    v -= 1.0\ntl.store(y + r * B + i, v)"
    )
    (got,) = run(kernel(body, call="x, y, 1, B=32", grid="(8,)", out="torch.zeros_like(x)"), X)
    want = torch.stack([X[r] * 0.5 ** ((r + 1) // 2) + (1.0 if r % 2 == 0 else -1.0) for r in range(7)] + [torch.zeros(32)])
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(("name", "want"), [("add", 8.0), ("max", 1.0)])
def test_atomics_from_every_program(name, want):
    body = f"i = tl.arange(0, B)\ntl.atomic_{name}(y + i, tl.load(x + i) * 0 + 1.0)"
    (got,) = run(kernel(body, call="x, y, 1, B=32", grid="(8,)", out="torch.zeros(32, device='cuda')"), X)
    assert torch.equal(got, torch.full((32,), want))


DOT = (
    "m, n_, r = tl.arange(0, 16), tl.arange(0, 16), tl.arange(0, B)\n"
    "a = tl.load(x + m[:, None] * B + r[None, :])\nb = tl.load(x + n_[None, :] * B + r[:, None])\n"
    "tl.store(y + m[:, None] * 16 + n_[None, :], tl.dot(a, b, input_precision='PRECISION'))"
)


def test_products_round_as_the_tensor_cores_do():
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    source = kernel(DOT, call="x, y, 1, B=32", grid="(1,)", out="torch.empty(16, 16, device='cuda')")
    (ieee,) = run(source.replace("PRECISION", "ieee"), x)
    (tf32,) = run(source.replace("PRECISION", "tf32"), x)
    torch.testing.assert_close(ieee, x @ x.t(), rtol=1e-5, atol=1e-5)
    error = (tf32 - x @ x.t()).norm() / (x @ x.t()).norm()
    assert 1e-5 < error < 1e-3
    assert torch.equal(
        narrow_products.tf32(torch.tensor([1 + 2**-11, 1 + 2**-12, float("inf")])),
        torch.tensor([1 + 2**-10, 1.0, float("inf")]),
    )


def test_descriptors_load_zero_outside():
    body = (
        "a = tl.make_tensor_descriptor(x, shape=[n, 32], strides=[32, 1], block_shape=[8, B])\n"
        "b = tl.make_tensor_descriptor(y, shape=[8, 32], strides=[32, 1], block_shape=[8, B])\nb.store([0, 0], a.load([4, 0]))"
    )
    (got,) = run(kernel(body, call="x, y, 8, B=32", grid="(1,)"), X)
    assert torch.equal(got, torch.cat([X[4:], torch.zeros(4, 32)]))


def test_bfloat16_is_right_where_triton_s_interpreter_is_not():
    x = X.bfloat16()
    (got,) = run(kernel(FLAT + "tl.store(y + i, v + v, mask=i < n)"), x)
    assert torch.equal(got, x + x)


OUTSIDE = {
    "load": (FLAT.replace("mask=i < n", "") + "tl.store(y + i, v, mask=i < n)", "(5,)"),
    "store": (FLAT + "tl.store(y + i, v)", "(5,)"),
    "before": ("i = tl.arange(0, B)\ntl.store(y + i, tl.load(x - 8 + i))", "(1,)"),
    "far": ("i = tl.arange(0, B)\ntl.store(y + i, tl.load(x + 1000000000 + i))", "(1,)"),
}


@pytest.mark.parametrize(("body", "grid"), OUTSIDE.values(), ids=OUTSIDE.keys())
def test_an_access_out_of_bounds_is_a_crash_with_its_place(body, grid):
    rejection = run(kernel(body, grid=grid), X)
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.CRASH
    assert "out of bounds" in rejection.reason


def test_what_is_pinned_is_memory_like_any_other():
    table = "torch.ones(4, pin_memory=True).pin_memory().to(x.device, non_blocking=True)"
    (got,) = run(module(f"return launch(x + {table}.sum() + torch.tensor([1.0], device=0, pin_memory=False).to(0))"), X)
    assert torch.equal(got, (X + 4 + 1) * 2)


def test_what_torch_has_for_gpus_alone_needs_one():
    rejection = run(module("return launch(x + F.avg_pool3d(x.half()[None, None], 1)[0, 0])"), X[None])
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.NEEDS_GPU
    assert "not implemented for 'Half' on a CPU." in rejection.reason


def test_memory_nobody_wrote_is_poison():
    (got,) = run(kernel(FLAT + "tl.store(y + i, v, mask=i < n - 1)"), X)
    assert torch.isnan(got.flatten()[-1])
    assert torch.equal(got.flatten()[:-1], X.flatten()[:-1])


def test_inputs_are_not_changed_and_a_node_can_be_skipped():
    x = X.clone()
    source = module("y = launch(x); return launch(y)")
    (twice,) = run(source, x)
    assert torch.equal(x, X)
    assert torch.equal(twice, X * 4)
    skipped = interpret_cases(planned(source, x), [Case({0: x}, skip=0)])
    assert isinstance(skipped, list)
    assert bool(torch.isnan(skipped[0][0]).all())


BY_VALUE = {
    "addresses": "v = tl.load(x + i)\nj = (tl.abs(v) * 9).to(tl.int32)\ntl.store(y + r * B + i, tl.load(x + j * B + i))",
    "stores": "v = tl.load(x + r * B + i)\nj = (tl.abs(tl.sum(v, 0))).to(tl.int32) % 8\ntl.store(y + r * B + (i + j) % B, v)",
    "loops": "v = tl.load(x + r * B + i)\nwhile tl.sum(tl.abs(v), 0) > 1:\n    v = v * 0.5\ntl.store(y + r * B + i, v)",
    "branches": "v = tl.load(x + r * B + i)\nif tl.sum(v, 0) > 0:\n    v = -v\ntl.store(y + r * B + i, v)",
    "atomics": "v = tl.load(x + r * B + i)\nj = (tl.abs(v) * 9).to(tl.int32)\ntl.atomic_add(y + j, v)\ntl.atomic_max(y + 64 + i, v)",
    "products": "m = tl.arange(0, 16)\na = tl.load(x + m[:, None] % 8 * B + i[None, :])\n"
    "tl.store(y + m[:, None] * 16 + m[None, :], tl.dot(a, tl.trans(a), input_precision='ieee'))",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("body", BY_VALUE.values(), ids=BY_VALUE.keys())
def test_cases_side_by_side_come_to_what_each_comes_to_alone(body):
    """Also where addresses, loops and branches depend on numbers, so that the cases go different ways."""
    drawn = torch.randn(5, 8, 32, generator=torch.Generator().manual_seed(1)).mul(0.3).clamp(-0.8, 0.8)
    body = "r = tl.program_id(0)\ni = tl.arange(0, B)\n" + body
    source = kernel(body, call="x, y, 1, B=32", grid="(8,)" if "dot" not in body else "(1,)", out="torch.zeros_like(x)")
    plan = planned(source, X)
    cases = [Case({0: x}, poison=17 * n, skip=1 if n == 3 else None) for n, x in enumerate(drawn)]
    together = interpret_cases(plan, cases)
    alone = [interpret_cases(plan, [case]) for case in cases]
    assert isinstance(together, list)
    for ours, theirs in zip(together, alone, strict=True):
        assert isinstance(theirs, list)
        torch.testing.assert_close(ours, theirs[0], rtol=1e-6, atol=1e-6, equal_nan=True)
    assert not torch.equal(together[0][0], together[1][0])


@pytest.mark.slow
def test_a_kernel_without_end_is_a_timeout():
    body = "i = tl.program_id(0)\nwhile i >= 0:\n    tl.store(y + i, tl.load(x + i))\n    i = (i + 1) % n"
    rejection = run(kernel(body, grid="(1,)", out="torch.zeros_like(x)"), X, timeout_s=0.5)
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.TIMEOUT


def test_what_cannot_be_interpreted_needs_a_gpu():
    rejection = run(kernel(FLAT + "tl.store(y + i, tl.extra.cuda.libdevice.add_ru(v, 1.0))"), X)
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.NEEDS_GPU


def test_a_transform_of_half_numbers_needs_a_gpu():
    source = module("return launch(torch.fft.rfft(x).real.float())")
    rejection = interpret(plan_of(source, spec(dense(8, 32, dtype="float16"))), {0: torch.randn(8, 32).half()})
    assert isinstance(rejection, Rejection)
    assert (rejection.status, rejection.reason) == (
        Status.NEEDS_GPU, "aten._fft_r2c.default: a CPU transforms no half numbers.",
    )  # fmt: skip


HELPERS = """
@triton.jit
def larger(a, b):
    return tl.maximum(a, b)
@triton.jit
def later(a, b):
    return b
@triton.jit
def decay(a, v, b, w):
    return a * b, b * v + w
@triton.jit
def decayed_sum(v, by):
    _, total = tl.associative_scan((tl.full(v.shape, 0.0, tl.float32) + by, v), 0, decay)
    return total
"""
TILES = {
    "sort": ("tl.sort(v)", lambda v: v.sort(1).values),
    "sort downward": ("tl.sort(v, descending=True)", lambda v: v.sort(1, descending=True).values),
    "the largest sixteen": (
        "tl.interleave(tl.topk(v, 16), tl.topk(-v, 16))",
        lambda v: torch.stack([v.topk(16).values, (-v).topk(16).values], 2).flatten(1),
    ),
    "flip": ("tl.flip(v, 0)", lambda v: v.flip(1)),
    "product so far": ("tl.cumprod(v, 0)", lambda v: v.cumprod(1)),
    "sum from the end": ("tl.cumsum(v, 0, reverse=True)", lambda v: v.flip(1).cumsum(1).flip(1)),
    "associative scan": ("tl.associative_scan(v, 0, larger)", lambda v: v.cummax(1).values),
    "scan with a number that all programs share": ("decayed_sum(v, n * 0.5)", lambda v: torch.stack([sum(v[:, j] * 0.5 ** (t - j) for j in range(t + 1)) for t in range(32)], 1)),
    "reduction whichever side is which": ("v * 0 + tl.reduce(v, 0, larger)", lambda v: v.amax(1, keepdim=True).expand(-1, 32)),
    "gather": ("tl.gather(v, (i * 7) % B, 0)", lambda v: v[:, torch.arange(32) * 7 % 32]),
    "histogram": ("tl.histogram(tl.abs(v * 4).to(tl.int32), B).to(tl.float32)", lambda v: torch.stack([torch.bincount((r * 4).abs().int(), minlength=32) for r in v]).float()),
    "histogram of some": ("tl.histogram(tl.abs(v * 4).to(tl.int32), B, mask=i < 20).to(tl.float32)", lambda v: torch.stack([torch.bincount((r * 4).abs().int(), minlength=32) for r in v[:, :20]]).float()),
    "interleave": ("tl.interleave(*tl.split(tl.reshape(v, (B // 2, 2))))", lambda v: v),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("expression", "want"), TILES.values(), ids=TILES.keys())
def test_what_moves_elements_of_a_tile(expression, want):
    source = kernel(ROWS + f"tl.store(y + r * B + i, {expression})", call="x, y, 1, B=32", grid="(8,)")
    got = run(source.replace("@triton.jit\ndef k", f"{HELPERS}@triton.jit\ndef k"), X)
    assert isinstance(got, list), got
    assert (
        torch.allclose(got[0], want(X))
        if "cat" not in expression
        else torch.equal(got[0].sort(1).values, want(X).sort(1).values)
    )


@pytest.mark.parametrize("size", [4, 16, 32])
def test_a_reduction_that_tells_left_from_right_is_not_right_by_luck(size):
    """Lanes of a warp combine with either neighbour on their left."""
    source = kernel(ROWS + "tl.store(y + r * B + i, v * 0 + tl.reduce(v, 0, later))", call=f"x, y, 1, B={size}", grid="(8,)")
    got = run(source.replace("@triton.jit\ndef k", f"{HELPERS}@triton.jit\ndef k"), X[:, :size].contiguous())
    assert isinstance(got, list), got
    assert not torch.equal(got[0], X[:, size - 1 : size].expand(-1, size))


@pytest.mark.parametrize(
    ("precision", "low", "high"), [("tf32", 1e-4, 1e-3), ("tf32x3", 0, 1e-6), ("bf16x3", 2e-6, 1e-4), ("bf16x6", 0, 2e-6)]
)
def test_emulated_products_have_the_error_of_the_hardware(precision, low, high):
    """tf32 keeps 11 bits, bf16 8: two parts leave 2^-16, three 2^-24."""
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    (got,) = run(
        kernel(
            DOT.replace("PRECISION", precision), call="x, y, 1, B=32", grid="(1,)", out="torch.empty(16, 16, device='cuda')"
        ),
        x,
    )
    want = x.double() @ x.double().t()
    assert low < (got - want).norm() / want.norm() < high


def test_an_infinite_operand_of_an_emulated_product_stays_infinite():
    x = torch.ones(16, 32).index_fill_(0, torch.tensor([3]), float("inf"))
    source = kernel(
        DOT.replace("PRECISION", "tf32x3"), call="x, y, 1, B=32", grid="(1,)", out="torch.empty(16, 16, device='cuda')"
    )
    (got,) = run(source, x)
    assert torch.equal(got, x @ x.t())


TRUE_HINTS = {
    "offsets": "o = tl.max_contiguous(tl.multiple_of(r * B + i, 32), 32)",
    "a number": "o = tl.multiple_of(r * 32, 16) + i",
    "a range that begins anew": "o = tl.max_contiguous(tl.multiple_of((r * B + i) % 250, B), B)",
    "assumed": "tl.assume(r < 8)\no = r * B + i",
    "rows that are constant": "o = r * B + i\nc = tl.max_constancy(tl.multiple_of(i // 8 * 8, 8), 8)\ntl.store(y + o, c)",
}
FALSE_HINTS = {
    "offsets that are no multiples": ("o = tl.max_contiguous(tl.multiple_of(r * B + i + 1, 32), 32)", "tl.multiple_of(…, 32)"),
    "a number that is none": ("o = tl.multiple_of(r * 2, 16) + i", "tl.multiple_of(…, 16)"),
    "reversed": ("o = r * B + tl.max_contiguous((i * 3) % 29, 8)", "tl.max_contiguous(…, 8)"),
    "an address": ("o = r * B + i\ntl.store(tl.multiple_of(y + o + 1, 16), 0.0, mask=i < 1)", "tl.multiple_of(…, 16)"),
    "a range that begins anew, and is wrong before": (
        "o = tl.max_contiguous((i * 2) % 32, 8)",
        "tl.max_contiguous(…, 8)",
    ),
    "the same number again and again": (
        "o = r * B + i\nc = tl.max_contiguous(i // 8, 8)\ntl.store(y + o, c)",
        "tl.max_contiguous(…, 8)",
    ),
    "no constant": ("o = r * B + i\nc = tl.max_constancy(o // 2, 8)\ntl.store(y + o, c)", "tl.max_constancy(…, 8)"),
    "assumed": ("tl.assume(r < 7)\no = r * B + i", "what tl.assume says"),
}


@pytest.mark.parametrize("body", TRUE_HINTS.values(), ids=TRUE_HINTS.keys())
def test_a_hint_that_holds_changes_nothing(body):
    (got,) = run(
        kernel(
            f"r = tl.program_id(0)\ni = tl.arange(0, B)\n{body}\ntl.store(y + o, tl.load(x + o))",
            call="x, y, 8, B=32",
            grid="(8,)",
        ),
        X,
    )
    assert torch.equal(got[:7], X[:7])


@pytest.mark.parametrize(("body", "said"), FALSE_HINTS.values(), ids=FALSE_HINTS.keys())
def test_a_false_hint_is_refused(body, said):
    source = kernel(
        f"r = tl.program_id(0)\ni = tl.arange(0, B)\n{body}\ntl.store(y + o, tl.load(x + o))", call="x, y, 8, B=32", grid="(8,)"
    )
    rejection = run(source, X)
    assert isinstance(rejection, Rejection), rejection
    assert rejection.status is Status.WRONG
    assert rejection.reason.startswith(f"k: {said} does not hold at this shape")


@pytest.mark.parametrize("wrapped", ["i % 20", "tl.where(i < 20, i, 0)"])
def test_where_a_tile_begins_anew_a_hint_may_be_false_but_nothing_may_be_stored(wrapped):
    """As in published matrix products, where a tile is larger than the matrix."""
    body = f"o = tl.max_contiguous(tl.multiple_of({wrapped}, 32), 32)\ntl.store(y + r * B + i, tl.load(x + o))"
    (got,) = run(
        kernel(f"r = tl.program_id(0)\ni = tl.arange(0, B)\n{body}", call="x, y, 8, B=32", grid="(8,)"),
        X,
    )
    assert torch.equal(got[:, :20], X[:1, :20].expand(8, 20))
    assert bool((got[:, 20:] == X[0, 19]).all()), "what is loaded there is another number than without the hint"


HONEST = read_folder("honest")[:: 1 if EXHAUSTIVE else 12]
"""By day one in twelve; tests/verifier/test_honest.py has the interpreter judge each of them, within wider tolerances."""


@pytest.mark.slow
@pytest.mark.parametrize("fixture", HONEST, ids=lambda f: f.name)
def test_honest_candidates_are_right(fixture):
    """At its small and ragged shapes, on drawn parameters, against eager PyTorch."""
    task, precision = fixture.task, fixture.precision
    for input_set in task.input_sets[1:]:
        plan = plan_of(fixture.source, spec_of(task, input_set, precision, "sm_90"))
        inputs = TaskInputs(task, input_set, precision, "cpu")
        inputs.draw(Draw(input_set.name, "offset", 1))
        got = interpret(plan, sources(inputs))
        assert isinstance(got, list), got
        with torch.no_grad():
            want = flatten(inputs.module(*inputs.arguments))
        for ours, theirs in zip(got[: len(want)], want, strict=True):  # running statistics come last
            error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
            assert error < {"tf32": 2e-3, "bf16": 2e-2, "fp16": 3e-3}.get(precision, 2e-6), input_set.name
