"""A plan is judged by what it says: forged or honest, the same rules."""
# ruff: noqa: E501  (programs are quoted as models write them)

from dataclasses import replace

import pytest
from support.front import HEAD, dense, module, plan_of, spec

from kernrl.verifier.base.devices import device_for
from kernrl.verifier.base.verdict import Status
from kernrl.verifier.plan import aten, ttir
from kernrl.verifier.plan.checks import Limits, Policy, check_plan
from kernrl.verifier.plan.kernel_flops import kernel_flops
from kernrl.verifier.plan.library_time import LAUNCH_US
from kernrl.verifier.plan.plan import AtenNode, LaunchNode, Plan, Special, Storage, TensorRef, TensorSpec, Variant
from kernrl.verifier.plan.price import flops_of, physical_floor_us, price

H200 = device_for("NVIDIA H200")
LINEAR = {"linear.weight": dense(16, 32), "linear.bias": dense(16)}


@pytest.fixture(scope="module")
def honest() -> Plan:
    return plan_of(module("return launch(x)"))


def verdict(plan: Plan, **kwargs) -> Status | None:
    rejection = check_plan(plan, kwargs.pop("spec", spec()), **kwargs)
    return rejection.status if rejection else None


def changed(plan: Plan, **fields) -> Plan:
    """The plan with its one launch's variant changed."""
    (node,) = plan.nodes
    assert isinstance(node, LaunchNode)
    return replace(plan, nodes=(LaunchNode((replace(node.variants[0], **fields),)),))


def test_an_honest_plan_passes(honest):
    assert check_plan(honest, spec(), outputs=[dense(8, 32)]) is None


LEFT_TO_TORCH = {
    "nothing launched": ("return x * 2", Status.POLICY),
    "launched on a dummy": ("launch(x); return torch.relu(x)", Status.DECOY),
    "overwritten": ("y = launch(x); y.copy_(torch.relu(x)); return y", Status.DECOY),
    "zeroed": ("y = launch(x); y.zero_(); return y", Status.DECOY),
    "only its shape used": ("return torch.zeros_like(launch(x))", Status.DECOY),
    "input returned": ("launch(x); return x", Status.POLICY),
    "view of the input": ("launch(x); return x[:4]", Status.POLICY),
    "input written by torch": ("x.mul_(2); return launch(x)", Status.POLICY),
    "input written through a view": ("x[0].zero_(); return launch(x)", Status.POLICY),
    "input written by an out argument": ("torch.exp(x, out=x); return launch(x)", Status.POLICY),
    "input written by a kernel": ("double[(4,)](x, x, 256, BLOCK=64); return launch(x)", Status.POLICY),
    "expanded": ("return launch(x)[:1].expand(8, 32)", Status.POLICY),
    "overlapping windows": ("return launch(x).view(-1).as_strided((8, 32), (1, 1))", Status.POLICY),
    "shared outputs": ("y = launch(x); return y, y[0]", Status.POLICY),
    "random": ("return launch(x + torch.rand_like(x))", Status.POLICY),
    "dropout": ("return launch(F.dropout(x, 0.5))", Status.POLICY),
    "a copy of an input beside an output": ("return launch(x), x.clone()", None),
    "copied parts of an input, joined": ("return launch(x), torch.cat((x[4:], x.half().float()[:4]))", None),
    "copied into new memory": ("y = torch.empty_like(x); y.copy_(x); return launch(x), y", None),
    "copied part by part": ("y = torch.empty_like(x); y[:4] = x[4:]; y[4:] = x[:4]; return launch(x), y", None),
    "copied over by a kernel's": ("y = x.clone(); y.copy_(launch(x)); return launch(x), y", None),
    "nothing beside an output": ("return launch(x), x[:, :0] * 2", None),
    "nothing alone": ("launch(x); return x[:, :0] * 2", Status.DECOY),
    "copied, then computed with": ("y = x.clone(); y.mul_(2); y[:4] = x[4:]; return launch(x), y", Status.DECOY),
    "a copy of that": ("y = x.clone(); y.mul_(2); return launch(x), y.clone()", Status.DECOY),
    "copies alone": ("launch(x); return x.clone(), x.clone()", Status.DECOY),
    "a copy of what torch computes": ("return launch(x), torch.relu(x).clone()", Status.DECOY),
    "a copy that torch changes": ("y = x.clone(); y.relu_(); return launch(x), y", Status.DECOY),
    "copied into what torch computes": ("y = torch.relu(x); y[:4].copy_(x[:4]); return launch(x), y", Status.DECOY),
    "a constant": ("return launch(x), torch.ones_like(x)", Status.DECOY),
    "unfused but authored": ("return launch(torch.relu(x)) + 1", None),
    "in place on its own": ("y = launch(x); y.add_(1); return y", None),
    "part overwritten": ("y = launch(x); y[0].zero_(); return y", None),
}


@pytest.mark.slow
@pytest.mark.parametrize(("body", "status"), LEFT_TO_TORCH.values(), ids=LEFT_TO_TORCH.keys())
def test_authorship_and_purity(body, status):
    assert verdict(plan_of(module(body))) is status


INVERTIBLE = "(x[:, :8] + 9 * torch.eye(8, device=x.device))"
LEFT_OUT = {
    "solve": (f"torch.linalg.solve({INVERTIBLE}, x)", "aten._linalg_solve_ex.default factorises a matrix"),
    "inv": (f"torch.linalg.inv({INVERTIBLE}) @ x", "aten.linalg_inv_ex.default factorises a matrix"),
    "cholesky": (f"torch.linalg.cholesky({INVERTIBLE}) @ x", "aten.linalg_cholesky_ex.default factorises a matrix"),
    "svd": ("torch.linalg.svdvals(x)[:, None] * x", "aten._linalg_svd.default factorises a matrix"),
    "eigh": (f"torch.linalg.eigh({INVERTIBLE})[1] @ x", "aten._linalg_eigh.default factorises a matrix"),
    "qr": ("torch.linalg.qr(x)[1]", "aten.linalg_qr.default factorises a matrix"),
    "det": (f"torch.linalg.det({INVERTIBLE}) * x", "aten._linalg_det.default factorises a matrix"),
    "triangular": (
        f"torch.linalg.solve_triangular({INVERTIBLE}, x, upper=True)",
        "aten.linalg_solve_triangular.default factorises a matrix, which may wait for the host, and a CUDA graph cannot",
    ),
    "matrix_exp": (
        f"torch.linalg.matrix_exp({INVERTIBLE}) @ x",
        "aten.linalg_matrix_exp.default reads numbers on the host, and a CUDA graph cannot: write it in a Triton kernel",
    ),
    "mode": ("torch.mode(x, 1)[0][:, None] * x", "aten.mode.default reads numbers on the host"),
    "isin": ("torch.isin(x, x[0]) * x", "aten.isin.Tensor_Tensor reads numbers on the host"),
    "segments": ("torch.segment_reduce(x, 'sum', lengths=x[:, 0].long())", "aten.segment_reduce.default reads numbers"),
    "range of a histogram": ("torch.histc(x, 32) * x", "without min and max, or with equal ones, it reads the range"),
    "multinomial": ("torch.multinomial(x, 32) * x", "aten.multinomial.default draws random numbers"),
    "polynomial": ("torch.special.shifted_chebyshev_polynomial_t(x, 3)", "is not on the list of operations a plan may hold"),
}


@pytest.mark.parametrize(("expression", "says"), LEFT_OUT.values(), ids=LEFT_OUT.keys())
def test_what_a_graph_cannot_hold_is_refused_with_its_reason(expression: str, says: str) -> None:
    rejection = check_plan(plan_of(module(f"return launch(({expression}).float().contiguous())")), spec())
    assert rejection is not None
    assert (rejection.status, says in rejection.reason) == (Status.POLICY, True), rejection.reason


def test_transforms_are_library_calls():
    plan = plan_of(module("return launch(torch.fft.rfft(x).abs())"))
    assert verdict(plan) is None
    assert verdict(plan, policy=Policy(library=False)) is Status.POLICY
    assert verdict(plan, policy=Policy(unfused=False)) is Status.POLICY, "the magnitude is left to torch, too"


def test_weights_may_not_be_written():
    source = module("self.linear.weight.data.zero_(); return launch(x)", "self.linear = nn.Linear(32, 16)")
    rejection = check_plan(plan_of(source, spec(state=LINEAR)), spec(state=LINEAR))
    assert rejection is not None
    assert "linear.weight" in rejection.reason


@pytest.mark.parametrize(
    "wanted",
    [[dense(8, 16)], [dense(8, 32, dtype="float16")], [], [dense(8, 32), dense(8, 32)]],
    ids=["shape", "dtype", "none", "two"],
)
def test_outputs_must_be_the_reference_s(honest, wanted):
    assert verdict(honest, outputs=wanted) is Status.WRONG


def test_policies(honest):
    source = module("return launch(torch.relu(x @ x.t()))")
    plan = plan_of(source)
    assert verdict(plan) is None
    assert verdict(plan, policy=Policy(library=False)) is Status.POLICY
    assert verdict(plan, policy=Policy(unfused=False)) is Status.POLICY
    assert verdict(honest, policy=Policy(library=False, unfused=False)) is None
    assert verdict(honest, limits=Limits(temp_bytes=100)) is Status.TOO_LARGE
    assert verdict(replace(honest, nodes=honest.nodes * 3), limits=Limits(launches=2)) is Status.POLICY


def test_forged_launches(honest):
    good = honest.nodes[0].variants[0].args
    assert verdict(changed(honest, args={**good, "n": 1 << 32})) is Status.TRACE_ERROR
    assert verdict(changed(honest, args={**good, "n": 1.5})) is Status.TRACE_ERROR
    assert verdict(changed(honest, args={**good, "x_ptr": 1 << 40})) is Status.TRACE_ERROR
    assert verdict(changed(honest, args={**good, "n": good["x_ptr"]})) is Status.TRACE_ERROR
    assert verdict(changed(honest, args={"x_ptr": good["x_ptr"]})) is Status.TRACE_ERROR
    assert verdict(changed(honest, args={**good, "extra": 1})) is Status.TRACE_ERROR
    assert verdict(changed(honest, grid=(1, 65_536, 1))) is Status.POLICY
    assert verdict(changed(honest, grid=((1 << 31) - 1, 2, 1))) is Status.POLICY
    kernel = honest.kernels[0]
    for forged in (
        replace(kernel, num_ctas=3),
        replace(kernel, num_ctas=16),
        replace(kernel, num_warps=64),
        replace(kernel, num_warps=3),
        replace(kernel, ttir="module {\n}\n"),
        replace(kernel, ttir=kernel.ttir.replace("%arg2: i32", "%arg2: i32, %arg3: i32")),
    ):
        assert verdict(replace(honest, kernels=(forged,))) in (Status.POLICY, Status.TRACE_ERROR)


def test_forged_alignments(honest):
    """The compiler believes that an argument is a multiple of 16; the tracer wrote that text."""
    (node,) = honest.nodes
    arguments = node.variants[0].args
    text = honest.kernels[0].ttir
    number = next(name for name, value in arguments.items() if isinstance(value, int))
    assert ttir.alignments(text) == [16, 16, 16]
    assert verdict(changed(honest, args=arguments | {number: 240})) is None
    assert verdict(changed(honest, args=arguments | {number: 250})) is Status.WRONG
    pointer = next(name for name, value in arguments.items() if isinstance(value, TensorRef))
    moved = replace(arguments[pointer], shape=(8, 31), offset=1)
    assert verdict(changed(honest, args=arguments | {pointer: moved})) is Status.WRONG


def test_forged_storages(honest):
    def with_first(storage: Storage) -> Plan:
        return replace(honest, storages=(storage, *honest.storages[1:]))

    assert verdict(with_first(Storage("input", 1024, 1))) is Status.TRACE_ERROR
    assert verdict(with_first(Storage("input", 2048, 0))) is Status.TRACE_ERROR
    assert verdict(with_first(Storage("state", 1024, "secret"))) is Status.TRACE_ERROR
    assert verdict(replace(honest, storages=(honest.storages[0],) * 2)) is Status.TRACE_ERROR


def test_forged_operations(honest):
    x = honest.nodes[0].variants[0].args["x_ptr"]
    for op in (
        "aten.set_.source_Tensor",
        "aten.resize_.default",
        "prim.load",
        "kernrl.answer",
        "aten.relu.nothing",
        "aten..",
        "aten.rand.default",
    ):
        forged = AtenNode(op, (x,), {}, (None,))
        assert verdict(replace(honest, nodes=(forged, *honest.nodes))) is Status.POLICY, op
    # what an op writes is read from its schema, not from what the plan says its results are
    assert verdict(replace(honest, nodes=(AtenNode("aten.relu_.default", (x,), {}, (None,)), *honest.nodes))) is Status.POLICY


def test_a_batch_norm_writes_running_statistics_unless_it_is_in_eval_mode(honest):
    x = honest.nodes[0].variants[0].args["x_ptr"]
    row = replace(x, shape=(32,), stride=(1,))
    for training in (True, False, 0, None):
        args = (x, None, None, row, row, training, 0.1, 1e-5)
        plan = replace(honest, nodes=(AtenNode("aten.native_batch_norm.default", args, {}, (None,) * 3), *honest.nodes))
        assert verdict(plan) is (None if training is False else Status.POLICY), training


def test_forged_setup(honest):
    x, y = honest.nodes[0].variants[0].args["x_ptr"], honest.outputs[0]
    assert verdict(replace(honest, setup=honest.nodes)) is Status.POLICY
    assert verdict(replace(honest, setup=(AtenNode("aten.relu.default", (x,), {}, (y,)),))) is Status.UNTRACEABLE


def test_every_allowed_op_exists():
    import torch

    packets = set(dir(torch.ops.aten)) | {
        n.split("::")[1].split(".")[0] for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")
    }
    assert packets | {"copy", "zero", "fill", "copysign"} >= aten.ALLOWED


def test_base_names():
    assert aten.base_name("aten.add_.Tensor") == "add"
    assert aten.base_name("aten._softmax.default") == "_softmax"
    assert aten.base_name("prims.add.default") == ""
    assert aten.mutated("aten.add_.Tensor") == {0, "self"}
    assert aten.mutated("aten.add.out") == {"out"}
    assert aten.mutated("aten.add.Tensor") == frozenset()
    assert aten.mutated("aten.nonsense.default") is None


# --- what a kernel touches and what it costs ---------------------------------------------------------------------


def ir_of(kernel: str, call: str) -> str:
    return (
        plan_of(
            HEAD
            + kernel
            + f"\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        y, z = torch.empty_like(x), torch.zeros_like(x)\n        {call}\n        return y\n"
        )
        .kernels[0]
        .ttir
    )


LOOPS = """
@triton.jit
def k(a, b, c, n, flag, B: tl.constexpr):
    i = tl.arange(0, B)
    p, q = a + i, b + i
    for _ in range(0, n, B):
        tl.store(q, tl.load(p, mask=i < n), mask=i < n)
        p += B
        q += B
    if flag > 3:
        tl.atomic_add(c + i, 1.0)
"""


def test_reads_and_writes_are_followed_through_loops_and_branches():
    found = ttir.access(ir_of(LOOPS, "k[(1,)](x, y, z, x.numel(), x.shape[0], B=64)"))
    assert (found.reads, found.writes) == ({0, 2}, {1, 2})


def test_a_pointer_chosen_at_run_time_may_be_either():
    source = """
@triton.jit
def k(a, b, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(tl.where(i < n, a + i, b + i), 1.0)
"""
    assert ttir.access(ir_of(source, "k[(1,)](x, y, x.shape[0], B=64)")).writes == {0, 1}


def test_a_pointer_made_of_an_integer_may_be_anything():
    source = """
@triton.jit
def k(a, b, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store((n + i).to(tl.int64).to(tl.pointer_type(tl.float32)), tl.load(a + i))
"""
    assert 1 in ttir.access(ir_of(source, "k[(1,)](x, y, x.shape[0], B=64)")).writes


def test_text_that_cannot_be_read_is_assumed_to_write_everything():
    assert {0, 1, 2} <= ttir.access("nonsense").writes


@pytest.mark.parametrize(
    ("body", "takes"),
    [
        ("tl.store(b, tl.max(v, 0))", True),
        ("tl.store(b, tl.max(v, 0, return_indices=True)[0])", True),
        ("for j in range(0, n):\n        v = tl.minimum(v, tl.load(a + j))\n    tl.store(b + i, v)", True),
        ("tl.atomic_max(b, tl.sum(v, 0))", True),
        ("tl.store(b, tl.sum(tl.maximum(v, 0.0), 0))", False),
        ("tl.atomic_add(b, tl.sum(v, 0))", False),
    ],
)
def test_a_kernel_takes_a_maximum_in_a_reduction_a_loop_or_by_atomics(body: str, takes: bool) -> None:
    source = f"""
@triton.jit
def k(a, b, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(a + i)
    {body}
"""
    assert ttir.takes_extreme(ir_of(source, "k[(1,)](x, y, x.shape[0], B=64)")) == takes


def test_text_that_cannot_be_read_takes_no_maximum() -> None:
    assert not ttir.takes_extreme("nonsense")


GEMM = """
@triton.jit
def k(a, b, c, M, N, K, B: tl.constexpr):
    m, n = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for s in range(0, tl.cdiv(K, B)):
        r = s * B + tl.arange(0, B)
        acc = tl.dot(tl.load(a + m[:, None] * K + r[None, :]), tl.load(b + r[:, None] * N + n[None, :]), acc, input_precision="ieee")
    tl.store(c + m[:, None] * N + n[None, :], acc)
"""


@pytest.mark.parametrize(("test", "known"), [("if b:", True), ("if b.to(tl.int64) % 4096:", False)])
def test_an_address_may_be_tested_for_null_alone(test, known):
    source = f"""
import triton
import triton.language as tl
@triton.jit
def k(x, b, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    {test}
        v += tl.load(b + i, mask=i < n)
    tl.store(y + i, v, mask=i < n)
"""
    found = ttir.access(ir_of(source, "k[(1,)](x, y, z, x.shape[0], B=64)"))
    assert (found.writes == {2}) is known


def test_a_product_is_counted_through_its_loop():
    source = (
        HEAD
        + GEMM
        + "\nclass ModelNew(nn.Module):\n    def forward(self, x, w):\n        y = torch.empty(64, 96, device='cuda')\n        k[(2, 3)](x, w, y, 64, 96, 128, B=32)\n        return y\n"
    )
    plan = plan_of(source, spec(dense(64, 128), dense(128, 96)))
    assert H200
    cost = price(plan, H200)
    assert kernel_flops(plan.kernels[0].ttir, {3: 64, 4: 96, 5: 128}, (2, 3, 1)).dot_flops == {"fp32": 2.0 * 64 * 96 * 128}
    assert cost.bytes_moved == 4 * (64 * 128 + 128 * 96 + 64 * 96)
    assert (cost.launches, cost.unfused) == (1, 0)


LENGTHS = {
    "of as many trips as an argument says": ("for j in range(0, n, B):\n        v += tl.load(x + j + i)", False),
    "in a loop": ("for j in range(4):\n        for k in range(0, n, B):\n            v += tl.load(x + j + k + i)", False),
    "while a condition holds": ("j = 0\n    while j < n:\n        v += tl.load(x + j + i)\n        j += B", True),
    "from the program's number": ("for j in range(tl.program_id(0) * B, n, B):\n        v += tl.load(x + j + i)", True),
    "to what is loaded": ("for j in range(0, tl.load(x).to(tl.int32), B):\n        v += tl.load(x + j + i)", True),
    "to where another loop is": (
        "for j in range(n):\n        for k in range(0, j, B):\n            v += tl.load(x + k + i)",
        True,
    ),
}


@pytest.mark.parametrize(("loop", "guessed"), LENGTHS.values(), ids=LENGTHS.keys())
def test_a_price_tells_whether_it_knows_how_long_loops_are(loop, guessed):
    source = (
        HEAD
        + f"\n@triton.jit\ndef k(x, y, n, B: tl.constexpr):\n    i = tl.arange(0, B)\n    v = tl.zeros([B], tl.float32)\n    {loop}\n"
        + "    tl.store(y + i, v)\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        y = torch.empty_like(x)\n"
        + "        k[(4,)](x, y, 256, B=32)\n        return y\n"
    )
    assert H200
    assert price(plan_of(source), H200).unknown is guessed


def test_hints_for_a_loop_may_stand_before_the_module():
    loop = "for j in tl.range(0, n, B, disable_licm=True):\n        v += tl.load(x + j + i)"
    kernel = f"@triton.jit\ndef k(x, y, n, B: tl.constexpr):\n    i = tl.arange(0, B)\n    v = i * 0.0\n    {loop}\n    tl.store(y + i, v)\n"
    text = ir_of(kernel, "k[(1,)](x, y, 256, B=32)")
    assert text.startswith("#loop")
    assert (ttir.access(text).reads, ttir.access(text).writes) == ({0}, {1})
    assert ttir.alignments(text) == [16, 16, 16]
    assert ttir.alignments(ir_of(kernel, "k[(1,)](x, y, 250, B=32)")) == [16, 16, 1]
    for forged in ("#loop_x = module {\n", "#other = #llvm.loop_licm<disable = true>\n", "#loop_x = #llvm.loop_licm<%0>\n"):
        with pytest.raises(ttir.TtirError, match="no module"):
            ttir.parse(forged + text)


def test_prices_of_library_calls():
    def ref(*shape):
        d = dense(*shape)
        return TensorRef(0, d.dtype, d.shape, d.stride)

    assert flops_of("aten.mm.default", (ref(4, 8), ref(8, 2)), (ref(4, 2),)) == 2 * 4 * 8 * 2
    assert flops_of("aten.addmm.default", (ref(2), ref(4, 8), ref(8, 2)), (ref(4, 2),)) == 2 * 4 * 8 * 2
    assert flops_of("aten.bmm.default", (ref(3, 4, 8), ref(3, 8, 2)), (ref(3, 4, 2),)) == 3 * 2 * 4 * 8 * 2
    conv = (ref(2, 3, 10, 10), ref(5, 3, 3, 3), None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    assert flops_of("aten.convolution.default", conv, (ref(2, 5, 8, 8),)) == 2 * (2 * 5 * 64) * 27
    back = (ref(2, 3, 8, 8), ref(3, 5, 3, 3), None, (1, 1), (0, 0), (1, 1), True, (0, 0), 1)
    assert flops_of("aten.convolution.default", back, (ref(2, 5, 10, 10),)) == 2 * (2 * 3 * 64) * 45
    assert flops_of("aten.relu.default", (ref(4),), (ref(4),)) == 0
    # the depth is not the last axis of one operand
    assert flops_of("aten.addbmm.default", (ref(4, 2), ref(3, 4, 8), ref(3, 8, 2)), (ref(4, 2),)) == 3 * 2 * 4 * 8 * 2
    bilinear = (ref(5, 7), ref(3, 7, 11), ref(5, 11), (1, 3), (0,), (1, 2), (2, 3))
    assert flops_of("aten._trilinear.default", bilinear, (ref(5, 3),)) == 2 * 3 * (5 * 7 * 11 + 5 * 11)
    by_ones = (ref(64, 256), ref(32, 256, 1), ref(64, 1), (1, 3), (0,), (1, 2), (2, 3))
    assert flops_of("aten._trilinear.default", by_ones, (ref(64, 32),)) == 2 * 32 * (64 * 256 + 64)
    other_order = (ref(5, 7), ref(5, 11), ref(3, 7, 11), (1, 3), (1, 2), (0,), (2, 3))
    assert flops_of("aten._trilinear.default", other_order, (ref(5, 3),)) == 2 * 3 * (5 * 7 * 11 * 2)
    attention = (ref(2, 3, 16, 8), ref(2, 3, 32, 8), ref(2, 3, 32, 4))
    flash = "aten._scaled_dot_product_flash_attention.default"
    assert flops_of(flash, attention, (ref(2, 3, 16, 4),)) == 2 * 6 * (16 * 32 * 8 + 16 * 32 * 4)
    assert flops_of("aten._cdist_forward.default", (ref(4, 8), ref(5, 8), 2.0, None), (ref(4, 5),)) == 2 * 4 * 5 * 8
    assert flops_of("aten._pdist_forward.default", (ref(4, 8), 2.0), (ref(6),)) == 2 * 6 * 8


def test_the_floor_counts_inputs_state_and_outputs_once():
    source = module("return launch(torch.relu(self.linear(x)) + 1)", "self.linear = nn.Linear(32, 16)")
    plan = plan_of(source, spec(dense(8, 32), state=LINEAR))
    assert H200
    bytes_once = 4 * (8 * 32 + 16 * 32 + 16 + 8 * 16)
    assert physical_floor_us(plan, H200) == pytest.approx(bytes_once / 4.8e6)
    cost = price(plan, H200)
    assert [n.kind for n in cost.nodes] == ["library", "unfused", "unfused", "authored"]
    assert cost.modelled_us > 4 * LAUNCH_US
    assert cost.modelled_us > physical_floor_us(plan, H200)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("launch((torch.tanh(x) * 2).masked_fill(later, -1.0))", 0),  # the other half of x need not be read
        ("launch(torch.softmax(x, 1).masked_fill(later, 0.0))", 1),  # a sum over all of a row
        ("launch(x + torch.tanh(x).relu())", 1),
        ("launch(torch.tril(x))", 0),
    ],
)
def test_what_a_mask_may_leave_unread_is_no_part_of_the_floor(body: str, inputs: int) -> None:
    source = module(f"later = torch.ones(64, 64, dtype=torch.bool, device=x.device).triu(1); return {body}")
    plan = plan_of(source, spec(dense(64, 64)))
    assert H200
    assert physical_floor_us(plan, H200) == pytest.approx((inputs + 1) * 4 * 64 * 64 / 4.8e6)


def test_a_table_costs_what_is_looked_up_and_its_rows_may_all_be_the_same_one():
    source = module("return launch(F.embedding(x, self.w))", "self.w = nn.Parameter(torch.ones(1000, 32))")
    plan = plan_of(source, spec(TensorSpec("int64", (4,), (1,)), state={"w": dense(1000, 32)}))
    assert H200
    indices, rows = 8 * 4, 4 * 4 * 32
    assert price(plan, H200).nodes[0].bytes_moved == indices + 2 * rows
    assert physical_floor_us(plan, H200) == pytest.approx((indices + rows) / 4.8e6)


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ("F.conv2d(x, self.w, stride=9)", 8 * 16 * 8 * 64),  # a row of nine, of which no sector is left out
        ("F.conv2d(torch.relu(x) * 2, self.w, stride=9)", 8 * 16 * 8 * 64),
        ("F.conv2d(x, self.w, stride=(9, 1))", 8 * 16 * 8 * 64),
        ("F.conv2d(x, self.w)", 8 * 16 * 64 * 64),
        ("F.conv2d(x.relu_(), self.w, stride=9)", 8 * 16 * 64 * 64),  # all of x is changed
        ("F.max_pool2d(x, 2, stride=16)", 8 * 16 * 8 * 32),  # two rows of sixteen, and a sector of two
        ("F.avg_pool2d(x, (1, 4), stride=(4, 4))", 8 * 16 * 16 * 64),
        ("F.interpolate(x, scale_factor=0.125)", 8 * 16 * 8 * 64),
        ("F.interpolate(x, scale_factor=2.0)", 8 * 16 * 64 * 64),
        ("F.interpolate(x, scale_factor=0.125, mode='bilinear')", 8 * 16 * 16 * 64),
        ("F.pad(x, (0, 0, -16, -16))", 8 * 16 * 32 * 64),
        ("F.unfold(x, 1, stride=8)", 8 * 16 * 8 * 8),
        ("torch.tanh(x)[:2]", 2 * 16 * 64 * 64),
        ("torch.softmax(x.exp() + 1, -1)[:, :, ::2]", 8 * 16 * 32 * 64),
        ("(torch.zeros_like(x) + 1)", 0),
        ("F.grid_sample(x, self.grid)", 0),
        ("F.conv_transpose2d(x, self.w.transpose(0, 1), stride=9)", 8 * 16 * 64 * 64),
        ("(torch.tanh(x)[:2] + x[2:4])", 4 * 16 * 64 * 64),
        ("(x.sum((2, 3), keepdim=True) + torch.tanh(x)[:, :, :1, :1])", 8 * 16 * 64 * 64),
    ],
)
def test_the_floor_counts_what_is_read_of_an_image(body: str, read: int) -> None:
    init = "self.w = nn.Parameter(torch.ones(4, 16, 1, 1)); self.register_buffer('grid', torch.ones(8, 2, 2, 2))"
    source = module(f"return launch(({body}).contiguous())", init)
    plan = plan_of(source, spec(dense(8, 16, 64, 64), state={"w": dense(4, 16, 1, 1), "grid": dense(8, 2, 2, 2)}))
    assert H200
    out = plan.outputs[0].nbytes
    others = 4 * (64 * ("self.w" in body) + 64 * ("self.grid" in body))
    assert physical_floor_us(plan, H200) * 4.8e6 == pytest.approx(read * 4 + out + others)


def test_specials_are_values_not_tensors(honest):
    good = honest.nodes[0].variants[0].args
    assert verdict(changed(honest, args={**good, "n": Special("float", "inf")})) is Status.TRACE_ERROR
    assert isinstance(honest.nodes[0].variants[0], Variant)
