"""What models write is understood; what cannot be traced is refused with a sentence that says how to write it instead."""
# ruff: noqa: E501  (programs are quoted as models write them)

import concurrent.futures
import dataclasses
from types import SimpleNamespace

import pytest
import torch
from support.front import HEAD, compiler, dense, interpret, module, plan_of, spec, trace

from kernrl.errors import UsageError
from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.plan.checks import check_plan
from kernrl.verifier.plan.plan import AtenNode, LaunchNode, Plan, TensorRef
from kernrl.verifier.trace.reference_spec import outputs_of, reference_plan, spec_of


def launches(plan: Plan) -> list[LaunchNode]:
    return [n for n in plan.nodes if isinstance(n, LaunchNode)]


def ops(plan: Plan) -> list[str]:
    return [n.op for n in plan.nodes if isinstance(n, AtenNode)]


def test_a_launch_is_recorded_over_storages():
    plan = plan_of(module("return launch(x)"))
    (launch,) = launches(plan)
    (variant,) = launch.variants
    assert variant.grid == (4, 1, 1)
    assert list(variant.args) == ["x_ptr", "y_ptr", "n"]
    assert variant.args["n"] == 256
    x, y = variant.args["x_ptr"], variant.args["y_ptr"]
    assert isinstance(x, TensorRef)
    assert plan.storages[x.storage].kind == "input"
    assert plan.outputs == (y,)
    kernel = plan.kernels[variant.kernel]
    assert (kernel.function, kernel.num_warps, kernel.constexprs) == ("double", 4, {"BLOCK": 64})
    assert kernel.ttir.startswith("module {")
    assert not ops(plan)


HABITS = {
    "grid of a lambda": (
        "y = torch.empty_like(x); "
        "double[lambda meta: (triton.cdiv(x.numel(), meta['BLOCK']),)](x, y, x.numel(), BLOCK=64); return y"
    ),
    "grid in three dimensions": "y = torch.empty_like(x); double[(4, 1, 1)](x, y, x.numel(), BLOCK=64); return y",
    "keywords": (
        "y = torch.empty_like(x); double[(4,)](x_ptr=x, y_ptr=y, n=x.numel(), BLOCK=64, num_warps=8, num_stages=2); return y"
    ),
    "grid in a variable": "y = torch.empty_like(x); k = double[(4,)]; k(x, y, x.numel(), 64); return y",
    "is_cuda": "assert x.is_cuda and x.device.type == 'cuda' and not x.is_cpu; return launch(x)",
    "device context": "with torch.cuda.device(x.device): return launch(x)",
    "a result made larger": (
        "y = torch.empty(0, device=x.device).resize_(x.shape); double[(4,)](x, y, 256, BLOCK=64); return y"
    ),
    "collects": "torch.cuda.ipc_collect(); torch.cuda.empty_cache(); return launch(x)",
    "accelerator": (
        "d = torch.accelerator.current_accelerator(); assert torch.accelerator.is_available() and d.type == 'cuda'\n"
        "with torch.get_device_module().device(torch.accelerator.current_device_index()): return launch(x)"
    ),
    "device index": "with torch.cuda.device(torch.cuda.current_device()): return launch(x)",
    "device properties": "n = torch.cuda.get_device_properties(x.device).multi_processor_count; assert n > 1; return launch(x)",
    "capability": "assert torch.cuda.get_device_capability() == (9, 0); torch.cuda.synchronize(); return launch(x)",
    "contiguous": "return launch(x.contiguous())",
    "to the device": "return launch(x.to('cuda').to(x.device).cuda())",
    "views": "return launch(x.view(-1)[:256].reshape(x.shape))",
    "views in place": "return launch(x.view(8, 32).unsqueeze_(1).transpose_(1, 2).squeeze_()).t_().t()",
    "empty on a device": (
        "y = torch.empty(x.shape, device=x.device, dtype=x.dtype); double[(4,)](x, y, 256, BLOCK=64); return y"
    ),
    "empty on cuda": "y = torch.empty(8, 32, device='cuda'); double[(4,)](x, y, 256, BLOCK=64); return y",
    "device of a number": (
        "y = torch.empty(x.shape, device=0); torch.empty_like(x.to(0).cuda(0), device=x.get_device())\n"
        "double[(4,)](x, y, 256, BLOCK=64); return y"
    ),
    "a library that may not be there": "try:\n    import no_such_library\nexcept ImportError:\n    pass\nreturn launch(x)",
    "no_grad": "with torch.no_grad(): return launch(x)",
    "inference mode": "with torch.inference_mode(): return launch(x)",
    "data pointer test": "assert x.data_ptr() % 16 == 0; return launch(x)",
    "stream handle": "torch.cuda.current_stream().cuda_stream; return launch(x)",
    "shape arithmetic": (
        "n = math.prod(x.shape); b = triton.next_power_of_2(x.size(-1)); y = torch.empty_like(x); "
        "double[(n // b,)](x, y, n, BLOCK=b); return y"
    ),
    "default device": "with torch.device('cuda'): y = torch.empty(8, 32)\ndouble[(4,)](x, y, 256, BLOCK=64); return y",
    "requires grad test": "assert not torch.is_grad_enabled(); return launch(x.detach())",
}


SLOW = {"compiled for other constants", "many operations", "hang"}


def cases(named):
    """Parameters of a test, by their names."""
    marks = {name: [pytest.mark.slow] if name in SLOW else [] for name in named}
    return [pytest.param(*values, id=name, marks=marks[name]) for name, values in named.items()]


@pytest.mark.parametrize("body", HABITS.values(), ids=HABITS.keys())
def test_habits_of_forward(body):
    plan = plan_of(module(body))
    assert len(launches(plan)) == 1
    assert not ops(plan)


WITH_GRADIENTS = {
    "a product with an input": "return launch(torch.matmul(x.transpose(0, 1), y))",
    "a product with what is made of a weight": "return launch(x.transpose(0, 1) @ (self.w * 2))",
    "a product from the left": "return launch(y.t() @ x.transpose(1, 2))",
    "a linear layer": "return launch(F.linear(x.transpose(0, 1), y))",
    "rows of an input": "return launch(F.embedding_bag(x.long().abs().view(-1, 8) % 32, y))",
}


@pytest.mark.parametrize("body", WITH_GRADIENTS.values(), ids=WITH_GRADIENTS)
def test_what_torch_calls_where_an_operand_needs_gradients_is_no_other_work(body):
    """A product folds its batch into rows then."""
    source = module(body, init="self.w = nn.Parameter(torch.randn(32, 32))", args="self, x, y")
    plan_of(source, spec(dense(4, 8, 32), dense(32, 32), state={"w": dense(32, 32)}))


MODULES = {
    "autograd function": HEAD + """
class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return launch(x)
    @staticmethod
    def backward(ctx, g):
        return g
class ModelNew(nn.Module):
    def forward(self, x):
        return Fn.apply(x)
""",
    "helper jit function and global constexpr": HEAD + """
SCALE = tl.constexpr(3.0)
WIDTH = tl.constexpr(64)
@triton.jit
def twice(v):
    return v * SCALE
@triton.jit
def k(x, y, n, flag, bias, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = twice(tl.load(x + i, mask=i < n)) + eps
    if bias is not None:
        v += tl.load(bias + i, mask=i < n)
    if flag:
        v = -v
    tl.store(y + i, v, mask=i < n)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        k[(4,)](x, y, x.numel(), True, None, 1e-5, BLOCK=64)
        return y
""",
    "decorated forward": HEAD + """
class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return launch(x)
""",
    "inference mode as decorator": HEAD + """
class ModelNew(nn.Module):
    @torch.inference_mode()
    def forward(self, x):
        return launch(x)
""",
    "kernel as attribute": HEAD + """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = double
    def forward(self, x):
        y = torch.empty_like(x)
        self.kernel[(4,)](x, y, x.numel(), BLOCK=64)
        return y
""",
    "a number under the name of a method": HEAD + """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.half, self.type = 1, "same"
    def forward(self, x):
        return launch(x[self.half - 1 :])
""",
    "device queried at import": HEAD + """
DEVICE = triton.runtime.driver.active.get_active_torch_device()
SMS = triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"]
assert torch.cuda.is_available() and SMS > 1
class ModelNew(nn.Module):
    def forward(self, x):
        return launch(x.to(DEVICE))
""",
}  # fmt: skip


@pytest.mark.parametrize("source", MODULES.values(), ids=MODULES.keys())
def test_habits_of_modules(source):
    assert len(launches(plan_of(source))) == 1


def test_autotune_records_every_config_with_its_own_grid():
    source = (
        HEAD
        + """
@triton.autotune(configs=[triton.Config({"B": 32}, num_warps=1), triton.Config({"B": 64}, num_warps=2, num_stages=4),
                          triton.Config({"B": 48})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["B"] == 0})
@triton.jit
def k(x, y, n, B: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        k[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](x, y, x.numel())
        return y
"""
    )
    plan = plan_of(source)
    (launch,) = launches(plan)
    # the third does not compile (48 is no power of two) and is left out, as Triton's autotuner does
    assert [v.grid[0] for v in launch.variants] == [8, 4]
    kernels = [plan.kernels[v.kernel] for v in launch.variants]
    assert [(k.constexprs["B"], k.constexprs["EVEN"], k.num_warps, k.num_stages) for k in kernels] == [
        (32, True, 1, 3),
        (64, True, 2, 4),
    ]


def test_autotune_without_a_config_that_compiles_is_a_compile_error():
    source = HEAD.replace(
        "@triton.jit", '@triton.autotune([triton.Config({"BLOCK": 48}), triton.Config({"BLOCK": 96})], key=["n"])\n@triton.jit'
    )
    rejection = trace(
        source.replace(", BLOCK=64)", ")") + "\nclass ModelNew(nn.Module):\n    def forward(self, x): return launch(x)\n"
    )
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.COMPILE_ERROR
    assert "power of 2" in rejection.reason


def test_specialisation_is_triton_s_own():
    source = module("""
        y = torch.empty_like(x)
        double[(4,)](x, y, 256, BLOCK=64)
        double[(4,)](x, y, 255, BLOCK=64)
        double[(4,)](x, y, 1, BLOCK=64)
        double[(4,)](x, y, 512, BLOCK=64)
        double[(4,)](x.view(-1)[1:], y, 256, BLOCK=64)
        return y""")
    plan = plan_of(source)
    assert [n.variants[0].kernel for n in launches(plan)] == [0, 1, 2, 0, 3]
    assert "n" not in launches(plan)[2].variants[0].args, "1 is folded into the code"
    assert plan.kernels[2].constexprs["n"] == 1


def test_an_empty_grid_launches_nothing():
    plan = plan_of(module("y = launch(x); double[(0,)](x, y, 0, BLOCK=64); return y"))
    assert len(launches(plan)) == 1


LINEAR = {"linear.weight": dense(16, 32), "linear.bias": dense(16)}


@pytest.mark.parametrize(
    ("init", "body"),
    [
        ("self.linear = nn.Linear(32, 16)", "return launch(self.linear(x))"),
        ("self.w = nn.Parameter(torch.empty(16, 32)); self.b = nn.Parameter(torch.zeros(16))", "return launch(F.linear(x, self.w, self.b))"),
        ("self.fc = nn.Linear(32, 16).cuda()", "return launch(torch.addmm(self.fc.bias, x, self.fc.weight.t()))"),
        ("linear = nn.Linear(32, 16); self.linear = linear; self.w = linear.weight", "return launch(x @ self.w.t() + self.linear.bias)"),
        ("self.linear = nn.Linear(32, 16); self.wt = self.linear.weight.data.t()", "return launch(x @ self.wt + self.linear.bias)"),
        ("self.linear = nn.Linear(32, 16); nn.init.xavier_uniform_(self.linear.weight)", "return launch(self.linear(x))"),
    ],
    ids=["by name", "by order", "other name", "alias", "view of a parameter", "initialised"],
)  # fmt: skip
def test_parameters_stand_for_the_reference_s(init, body):
    plan = plan_of(module(body, init), spec(dense(8, 32), state=LINEAR))
    assert {s.source for s in plan.storages if s.kind == "state"} == set(LINEAR)
    assert not plan.setup, "initialisation is not replayed"


def test_precision_casts_parameters_and_inputs():
    state = {k: dense(*v.shape, dtype="bfloat16") for k, v in LINEAR.items()}
    source = module(
        "assert x.dtype == self.linear.weight.dtype == torch.bfloat16; return launch(self.linear(x))",
        "self.linear = nn.Linear(32, 16)",
    )
    plan = plan_of(source, spec(dense(8, 32, dtype="bfloat16"), state=state, precision="bf16"))
    assert plan.outputs[0].dtype == "bfloat16"


def test_constants_of_the_constructor_are_setup():
    source = module(
        "return launch(x + self.table + self.two.to(x.device) + self.mask)",
        "self.register_buffer('table', torch.arange(32).float() * 0.5); self.two = torch.tensor([2.0, 3.0]).sum();"
        " self.mask = torch.ones(32, device='cuda'); self.unused = torch.zeros(99)",
    )
    plan = plan_of(source)
    assert [n.op for n in plan.setup if isinstance(n, AtenNode)] == [
        "aten.arange.default", "aten._to_copy.default", "aten.mul.Tensor", "kernrl.constant", "aten.sum.default", "aten.ones.default",
    ]  # fmt: skip
    constant = plan.setup[3]
    assert isinstance(constant, AtenNode)
    assert constant.args == ((2.0, 3.0), (2,))


def test_batch_norm_in_training_leaves_state_alone():
    state = {
        "bn.weight": dense(4),
        "bn.bias": dense(4),
        "bn.running_mean": dense(4),
        "bn.running_var": dense(4),
        "bn.num_batches_tracked": dense(dtype="int64"),
    }
    source = module("return launch(self.bn(x))", "self.bn = nn.BatchNorm2d(4)")
    plan = plan_of(source, spec(dense(2, 4, 3, 3), state=state))
    assert ops(plan) == ["aten.native_batch_norm.default"]
    assert "bn.running_mean" not in {s.source for s in plan.storages}
    plan = plan_of(source, spec(dense(2, 4, 3, 3), state=state, training=False))
    assert "bn.running_mean" in {s.source for s in plan.storages}


def test_several_inputs_numbers_lists_and_outputs():
    source = module(
        "a, b = xs; return {'y': launch(a), 'z': [launch(b * k)]}",
        args="self, xs, k",
        init="assert (n, d) == (3, [1, 2])",
        params="self, n, d",
    )
    plan = plan_of(source, spec([dense(4, 4), dense(2, 2)], 2.5, init=(3, [1, 2])))
    assert [s.source for s in plan.storages if s.kind == "input"] == [0, 1]
    assert [o.shape for o in plan.outputs] == [(4, 4), (2, 2)]


def test_workspaces_views_and_strides():
    plan = plan_of(
        module("w = torch.zeros(2, 8, 32, device=x.device); double[(4,)](x.t(), w[1], 256, BLOCK=64); return launch(w[1])")
    )
    first = launches(plan)[0].variants[0].args
    assert first["x_ptr"].stride == (1, 32)
    assert first["y_ptr"].offset == 256
    assert ops(plan) == ["aten.zeros.default"]


@pytest.mark.parametrize(("rank", "call"), [(2, "conv2d"), (2, "conv_transpose2d"), (3, "conv3d")])
def test_a_convolution_leaves_the_channels_where_it_finds_them(rank, call):
    """As cuDNN does: a copy into another order that no real run makes would be timed with the candidate."""
    last = torch.channels_last if rank == 2 else torch.channels_last_3d
    body = (
        f"w = torch.full((4, 4, {'3, ' * rank}), 0.5, device=x.device); last = {last}; "
        f"y = nn.functional.{call}(x.contiguous(memory_format=last), w); return launch(y.contiguous(memory_format=last))"
    )
    plan = plan_of(module(body), spec(dense(2, 4, *[6] * rank)))
    (convolution,) = [n for n in plan.nodes if isinstance(n, AtenNode) and n.op == "aten.convolution.default"]
    (made,) = convolution.outputs
    assert made
    assert made.stride[1] == 1
    assert ops(plan).count("aten.clone.default") == 1
    plain = plan_of(
        module(f"return launch(nn.functional.{call}(x, torch.ones({'4, ' * (rank + 2)}device=x.device)))"),
        spec(dense(2, 4, *[6] * rank)),
    )
    (convolution,) = [n for n in plain.nodes if isinstance(n, AtenNode) and n.op == "aten.convolution.default"]
    (made,) = convolution.outputs
    assert made
    assert made.stride[-1] == 1


def test_device_side_descriptors():
    source = (
        HEAD
        + """
@triton.jit
def k(x, y, M, N, B: tl.constexpr):
    a = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[B, B])
    b = tl.make_tensor_descriptor(y, shape=[M, N], strides=[N, 1], block_shape=[B, B])
    b.store([tl.program_id(0) * B, 0], a.load([tl.program_id(0) * B, 0]))
class ModelNew(nn.Module):
    def forward(self, x):
        triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
        y = torch.empty_like(x)
        k[(2,)](x, y, x.shape[0], x.shape[1], B=16)
        return y
"""
    )
    assert "make_tensor_descriptor" in plan_of(source, spec(dense(32, 16))).kernels[0].ttir


DESCRIPTORS = """
from triton.tools.tensor_descriptor import TensorDescriptor
@triton.jit
def twice(x, n, y, B: tl.constexpr):
    y.store([tl.program_id(0) * B, 0], x.load([tl.program_id(0) * B, 0]) * 2.0)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        a = TensorDescriptor.from_tensor(x, [16, 16])
        twice[(2,)](a, 5, TensorDescriptor(y, list(y.shape), list(y.stride()), [16, 16]), B=16)
        return y
"""


@pytest.mark.slow
def test_host_side_descriptors_are_made_in_the_kernel():
    plan = plan_of(HEAD + DESCRIPTORS, spec(dense(20, 16)))
    args = launches(plan)[0].variants[0].args
    assert list(args)[:6] == ["x", "x.shape.0", "x.shape.1", "x.stride.0", "x.stride.1", "n"]
    assert (args["x.shape.0"], args["y.stride.0"]) == (20, 16)
    x = torch.randn(20, 16)
    assert torch.equal(interpret(plan, {0: x})[0], x * 2)
    compiled = compiler().compile(plan.kernels, "sm_90")[0]
    assert not isinstance(compiled, Rejection), compiled


OPERATORS = {
    "custom_op": "@torch.library.custom_op('mine::f', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor: return launch(x)\n",
    "triton_op": "@torch.library.triton_op('mine::f', mutates_args={})\ndef f(x: torch.Tensor) -> torch.Tensor: return launch(x)\n",
    "define": "torch.library.define('mine::f', '(Tensor x) -> Tensor')\n@torch.library.impl('mine::f', 'cuda')\ndef f(x): return launch(x)\n",
    "Library": (
        "L = torch.library.Library('mine', 'FRAGMENT')\nL.define('f(Tensor x, float by=2.0) -> Tensor')\n"
        "def f(x, by): assert by == 2.0; return launch(x)\nL.impl('f', f, 'CUDA')\nL.impl('f', lambda x, by: 1 / 0, 'CPU')\n"
    ),
    "Library, described": (
        "L = torch.library.Library('mine', 'FRAGMENT')\ndef f(x: torch.Tensor) -> torch.Tensor: return launch(x)\n"
        "L.define('f' + torch.library.infer_schema(f, mutates_args=[]))\nL.impl('f', f, dispatch_key='CUDA')\n"
        "L._register_fake('f', lambda x: 1 / 0)\n"
    ),
    "impl on a library": (
        "L = torch.library.Library('mine', 'DEF')\nL.define('f(Tensor x) -> Tensor')\n"
        "@torch.library.impl(L, 'f', 'CUDA')\ndef f(x): return launch(x)\n"
        "@torch.library.register_fake('mine::f')\ndef _(x): return 1 / 0\n"
    ),
}


@pytest.mark.parametrize("call", ["torch.ops.mine.f(x)", "torch.ops.mine.f.default(x)"])
@pytest.mark.parametrize("registered", OPERATORS.values(), ids=OPERATORS.keys())
def test_registered_operators_are_traced_by_their_names(registered, call):
    source = HEAD + registered + f"class ModelNew(nn.Module):\n    def forward(self, x): return {call}\n"
    assert len(launches(plan_of(source))) == 1


def test_a_launch_returns_what_can_be_launched_again_and_says_what_it_needs():
    plan = plan_of(
        module("""
        y, z = torch.empty_like(x), torch.empty_like(x)
        k = double[(4,)](x, y, 256, BLOCK=64, num_warps=2)
        k[(4, 1, 1)](y, z, 256, 64)
        w = double.warmup(x, y, 256, BLOCK=64, num_warps=2, grid=(1,))
        w._init_handles()
        assert w.n_max_threads >= 64
        assert 8 <= w.n_regs <= 255 and w.n_spills == 0 and 0 < w.metadata.shared < 1 << 16 and w.metadata.num_warps == 2
        w[(2, 1, 1)](x, z, 512)
        return z""")
    )
    assert [n.variants[0].kernel for n in launches(plan)] == [0, 0, 0], "a warm-up launches nothing"
    assert [n.variants[0].grid[0] for n in launches(plan)] == [4, 4, 2]
    assert launches(plan)[1].variants[0].args["x_ptr"].storage == launches(plan)[0].variants[0].args["y_ptr"].storage


SHIFT = (
    HEAD
    + """
@triton.jit
def shift(x, y, n, by, least, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i + by < n, other=0.0) * tl.maximum(by, least), mask=i < n)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        k = shift.warmup(x, y, {0}, BLOCK=64, grid=(1,))
        k[(4, 1, 1)](x, y, {1})
        return y
"""
)


@pytest.mark.parametrize(
    ("compiled", "launched", "fits"),
    [
        ("250, 3, 0", "250, 3, 0", True),
        ("250, 3, 0", "250, 1, 0", True),
        ("250, 3, 7", "256, 1, 1", True),
        ("(1 << 40) + 1, (1 << 40) + 1, 7", "256, 1, 5", True),
        ("(1 << 40) + 1, 3, 0", "250, 3, 0", True),
        ("250, 1, 0", "250, 3, 0", False),
        ("250, 3, 0", "1 << 40, 3, 0", False),
        ("256, 3, 0", "250, 3, 0", False),
        ("256, 3, 0", "1, 3, 0", False),
        ("250, 3, 0", "250, 1.0, 0", False),
        ("250, 3, 0", "250, None, 0", False),
        ("250, 1.5, 0", "250, 1, 0", False),
    ],
)
def test_a_compiled_kernel_takes_what_its_code_is_right_for(compiled: str, launched: str, fits: bool) -> None:
    """What Triton specialises more is no other argument: a kernel for any whole number computes with 1, too."""
    source = SHIFT.replace("{0}", compiled).replace("{1}", launched)
    if fits:
        [variant] = launches(plan_of(source))[0].variants
        n, by, _ = eval(f"({launched})")
        assert (variant.args["n"], variant.args["by"]) == (n, by)
    else:
        rejection = trace(source)
        assert isinstance(rejection, Rejection)
        assert "was not compiled for" in rejection.reason


TUNED = HEAD.replace(
    "@triton.jit", "@triton.autotune([triton.Config({'BLOCK': 32}), triton.Config({'BLOCK': 64})], key=['n'])\n@triton.jit"
)


def test_an_autotuner_may_be_imported_by_its_name():
    tuned = HEAD.replace("@triton.jit", "@triton.autotune([triton.Config({'BLOCK': 64})], key=['n'])\n@triton.jit").replace(
        ", BLOCK=64", ""
    )
    assert launches(plan_of("from triton.runtime.autotuner import Autotuner\n" + tuned + MODEL))


def test_annotations_are_evaluated_unless_the_code_says_otherwise():
    check = "def f(a: int): ...\nassert f.__annotations__ == {'a': %s}\n"
    assert launches(plan_of(check % "int" + HEAD + MODEL))
    assert launches(plan_of("from __future__ import annotations\n" + check % "'int'" + HEAD + MODEL))


def test_whoever_reads_the_best_configuration_has_no_other():
    body = """
        for i in range(2):
            y = torch.empty_like(x)
            double[lambda m: (triton.cdiv(256, m['BLOCK']),)](x, y, 256)
        {}
        double[lambda m: (triton.cdiv(256, m['BLOCK']),)](x, y, 256)
        return y"""
    for line, counts in (("", [2, 2, 2]), ("assert double.best_config.kwargs['BLOCK'] == 32", [1, 1, 1])):
        source = module(body.format(line)).replace(HEAD, TUNED)
        assert [len(n.variants) for n in launches(plan_of(source))] == counts


HOOKED = """
def zero(args): args["y_ptr"].zero_()
@triton.autotune([triton.Config({"BLOCK": 32}, pre_hook=%s), triton.Config({"BLOCK": 64}, pre_hook=zero)], key=["n"])
@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if BLOCK == 32:
        tl.%s(y_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)
    else:
        tl.atomic_add(y_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        double[lambda m: (triton.cdiv(256, m["BLOCK"]),)](x, y, 256)
        return y
"""
IMPORTS = HEAD.partition("@triton.jit")[0]


@pytest.mark.parametrize(("hook", "how"), [("zero", "atomic_add"), ("None", "store")])
def test_what_hooks_of_configurations_do_comes_before_the_launch(hook, how):
    first, second = plan_of(IMPORTS + HOOKED % (hook, how)).nodes
    assert first.op == "aten.zero_.default"
    assert len(second.variants) == 2


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["None", "lambda args: args['y_ptr'].fill_(1.0)"])
def test_hooks_of_configurations_must_agree(hook):
    rejection = trace(IMPORTS + HOOKED % (hook, "atomic_add"))
    assert isinstance(rejection, Rejection)
    assert "pre_hooks of autotune configs do different things" in rejection.reason


def test_clusters_of_blocks():
    plan = plan_of(module("y = torch.empty_like(x); double[(4,)](x, y, 256, BLOCK=64, num_ctas=2); return y"))
    assert plan.kernels[0].num_ctas == 2
    assert check_plan(plan, spec(dense(8, 32))) is None
    kernels = (dataclasses.replace(plan.kernels[0], num_ctas=3),)
    assert "3 blocks a cluster" in check_plan(dataclasses.replace(plan, kernels=kernels), spec(dense(8, 32))).reason


TWO = {"norm1.weight": dense(8), "norm2.weight": dense(8)}


@pytest.mark.parametrize(
    ("init", "found"),
    [
        ("self.norm2_weight = nn.Parameter(torch.ones(8)); self.norm1_weight = nn.Parameter(torch.ones(8))", [1, 0]),
        ("self.w2 = nn.Parameter(torch.ones(8)); self.w1 = nn.Parameter(torch.ones(8))", [1, 0]),
        ("self.a = nn.Parameter(torch.ones(8)); self.norm1 = nn.LayerNorm(8, bias=False)", [1, 0]),
        ("self.alpha = nn.Parameter(torch.ones(8)); self.omega = nn.Parameter(torch.ones(8))", "alpha or omega may stand for the reference's norm1.weight or norm2.weight"),
    ],
    ids=["words", "numbers", "one left", "neither"],
)  # fmt: skip
def test_parameters_of_one_shape_are_never_swapped_in_silence(init, found):
    source = module("a, b = self.parameters(); return launch(x * a - b)", init)
    plans = trace(source, spec(dense(4, 8), state=TWO))
    if isinstance(found, str):
        assert isinstance(plans, Rejection)
        assert (plans.status, found in plans.reason) == (Status.UNTRACEABLE, True), plans
        return
    assert isinstance(plans, list), plans
    order = [plans[0].storages[n.args[1].storage].source for n in plans[0].nodes if isinstance(n, AtenNode)]
    assert order == [list(TWO)[i] for i in found]


REFUSED = {
    "item": ("return launch(x * x.max().item())", "cannot be traced"),
    "float": ("return launch(x * float(x.max()))", "cannot be traced"),
    "branch on a value": ("return launch(x) if x.sum() > 0 else x", "condition on a tensor"),
    "tolist": ("return launch(x * x.tolist()[0][0])", "tolist"),
    "numpy": ("return launch(torch.from_numpy(x.numpy()))", "numpy"),
    "cpu": ("return launch(x.cpu())", ".cpu()"),
    "allclose": ("assert torch.allclose(launch(x), x); return launch(x)", "reads a tensor's value on the host (torch.allclose,"),
    "equal": ("assert launch(x).equal(x); return launch(x)", "reads a tensor's value on the host (torch.equal,"),
    "a function that compares": ("return launch(torch.cov(x))", "reads a tensor's value on the host (torch.equal,"),
    "environment": ("import os; os.environ.get('DEBUG'); return launch(x)", "ask it when the module is imported"),
    "nonzero": ("return launch(x[x > 0])", "torch.nonzero() makes a tensor whose shape depends on numbers"),
    "unique": ("return launch(torch.unique(x))", "makes a tensor whose shape depends on numbers"),
    "masked_select": ("return launch(x.masked_select(x > 0))", "makes a tensor whose shape depends on numbers"),
    "least squares": ("return launch(torch.linalg.lstsq(x, x).solution)", "makes a tensor whose shape depends on numbers"),
    "istft": (
        "z = torch.stft(x.view(1, -1), 16, 4, window=torch.ones(16, device=x.device), return_complex=True); "
        "return launch(torch.istft(z, 16, 4, window=torch.ones(16, device=x.device)))", "torch.istft, which looks at",
    ),
    "nested": ("return launch(torch.nested.nested_tensor([x[0], x[1]]).to_padded_tensor(0.0))", "without them"),
    "conjugated in place": (
        "y = launch(x); torch.view_as_complex(y.view(8, 16, 2)).conj().mul_(2j); return y", "call resolve_conj()",
    ),
    "negated by a mark": ("return launch(torch.view_as_complex(x.view(8, 16, 2)).conj().imag)", "call resolve_conj()"),
    "negated in place": (
        "y = launch(x); torch.view_as_complex(y.view(8, 16, 2)).conj().imag.mul_(2); return y", "call resolve_conj()",
    ),
    "bincount": ("return launch(torch.bincount(x.long()).float())", "aten::bincount makes a tensor whose shape depends"),
    "stream": ("s = torch.cuda.Stream(); return launch(x)", "streams"),
    "cuda graph": ("g = torch.cuda.CUDAGraph(); return launch(x)", "CUDA graphs"),
    "compile": ("return torch.compile(launch)(x)", "write the fusion in Triton"),
    "thread": ("import threading; threading.Thread(target=print).start(); return launch(x)", "threads"),
    "autocast": ("with torch.autocast('cuda'): return launch(x)", ".to(dtype)"),
    "machine code": ("return x * len(double.warmup(x, x, 1, BLOCK=64, grid=(1,)).function)", "not known in a trace"),
    "compiled for other arguments": (
        "y = torch.empty_like(x); k = double[(4,)](x, y, 256, BLOCK=64); k[(4, 1, 1)](x, y, 255, 64); return y",
        "a value of n (not divisible by 16)",
    ),
    "compiled for other constants": (
        "y = torch.empty_like(x); k = double[(4,)](x, y, 256, BLOCK=64); k[(4, 1, 1)](x, y, 256, 32); return y",
        "types or constants",
    ),
    "addresses in a tensor": (
        "y = torch.empty_like(x); t = torch.tensor([x.data_ptr(), y.data_ptr()], device='cuda');"
        " double[(1,)](x, t, 2, BLOCK=64); return y",
        "a tensor of addresses",
    ),
    "TorchScript": ("return torch.jit.script(launch)(x)", "TorchScript"),
    "Gluon": (
        "from triton.experimental import gluon; gluon.jit(double.fn)[(4,)](x, x, 256, 64); return launch(x)", "Gluon kernel",
    ),
    "a generator of the GPU": ("torch.Generator(device='cuda'); return launch(x)", "asks a GPU itself"),
    "the GPU's state": ("torch.cuda.get_rng_state(); return launch(x)", "asks a GPU itself"),
    "an input made larger": ("x.resize_(16, 32); return launch(x)", "resized"),
    "times kernels": ("triton.testing.do_bench(lambda: launch(x)); return launch(x)", "cannot be timed"),
    "operator of torch": (
        "torch.library.custom_op('aten::mine', mutates_args=())(launch); return launch(x)", "under a name of its own",
    ),
    "address": ("y = torch.empty_like(x); double[(4,)](x, y, y.data_ptr(), BLOCK=64); return y", "pass the tensor itself"),
    "many operations": ("for _ in range(10**9): x = x + 1\nreturn launch(x)", "operations"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "says"), cases(REFUSED))
def test_what_cannot_be_traced_says_what_to_write_instead(body, says):
    rejection = trace(module(body))
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.UNTRACEABLE
    assert says in rejection.reason
    assert "[line " in rejection.reason


@pytest.mark.parametrize(
    "mark",
    [
        "return z.conj()",
        "return z.conj().imag",
        "return torch._neg_view(launch(x))",
        "torch._C._set_conj(z, True); return z",
        "return torch.fft.ifft(launch(x))",
    ],
)
def test_a_result_is_not_conjugated_by_a_mark(mark):
    rejection = trace(module(f"z = torch.view_as_complex(launch(x).view(8, 16, 2)); {mark}"))
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.UNTRACEABLE
    assert "by a mark alone" in rejection.reason


@pytest.mark.parametrize(
    ("init", "body", "says"),
    [
        ("self.extra = nn.Parameter(torch.randn(5, 32))", "return launch(x @ self.extra.t())", "no counterpart"),
        ("self.noise = torch.randn(32, device='cuda')", "return launch(x + self.noise)", "random"),
    ],
)  # fmt: skip
def test_what_the_constructor_may_not_make(init, body, says):
    rejection = trace(module(body, init), spec(dense(8, 32), state=LINEAR))
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.UNTRACEABLE
    assert says in rejection.reason


@pytest.mark.parametrize(
    ("init", "body"),
    [
        ("self.linear = nn.Linear(32, 16); self.w = (self.linear.weight * 2).cuda()", "return launch(x @ self.w.t())"),
        ("self.linear = nn.Linear(32, 16); self.w = self.linear.weight.t().contiguous()", "return launch(x @ self.w.cuda())"),
    ],
)
def test_what_the_constructor_makes_of_a_weight_is_made_in_every_call(init, body):
    """Weights change; a constructor's work on them is no gain that is not timed."""
    plan = plan_of(module(body, init), spec(dense(8, 32), state=LINEAR))
    assert not plan.setup
    made = plan.nodes[0]
    assert isinstance(made, AtenNode)
    assert made.op in ("aten.mul.Tensor", "aten.clone.default")
    assert plan.storages[made.args[0].storage].source == "linear.weight"


ERRORS = {
    "exception": ("raise ValueError('no')", Status.TRACE_ERROR, "ValueError: no"),
    "shapes": ("return launch(x @ x)", Status.TRACE_ERROR, "[8, 32]"),
    "host tensor in a launch": (
        "y = torch.empty(8, 32); double[(4,)](x, y, 256, BLOCK=64); return y",
        Status.TRACE_ERROR, "device=x.device",
    ),
    "host and device mixed": ("return launch(x + torch.ones(32))", Status.TRACE_ERROR, "device=x.device"),
    "host output": ("launch(x); return torch.zeros(3)", Status.TRACE_ERROR, "device=x.device"),
    "no output": ("launch(x)", Status.TRACE_ERROR, "NoneType"),
    "another library": ("import no_such_library", Status.TRACE_ERROR, "No module named 'no_such_library', and candidates have"),
    "missing argument": ("y = torch.empty_like(x); double[(4,)](x, y, BLOCK=64); return y", Status.TRACE_ERROR, "missing"),
    "not a power of two": (
        "y = torch.empty_like(x); double[(4,)](x, y, 256, BLOCK=65); return y",
        Status.COMPILE_ERROR, "power of 2",
    ),
    "memory": ("b = bytearray(1 << 40); return launch(x)", Status.TRACE_ERROR, "MemoryError"),
    "exit": ("import sys; sys.exit(0)", Status.TRACE_ERROR, "ended its process"),
    "segfault": ("import ctypes; ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(8))", Status.CRASH, "signal 11"),
    "hang": ("while True: pass", Status.TIMEOUT, "2 s"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "status", "says"), cases(ERRORS))
def test_failures_have_a_status_and_a_reason(body, status, says):
    rejection = trace(module(body), timeout_s=2.0)
    assert isinstance(rejection, Rejection)
    assert (rejection.status, says in rejection.reason) == (status, True), rejection


MODEL = "\nclass ModelNew(nn.Module):\n    def forward(self, x): return launch(x)\n"


def test_compile_errors_quote_the_line():
    rejection = trace(HEAD.replace("* 2.0", "* tl.cosine(3)") + MODEL)
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.COMPILE_ERROR
    assert "cosine" in rejection.reason


def test_a_compile_error_in_a_helper_says_what_is_wrong():
    helpers = "@triton.jit\ndef inner(v): return v * FACTOR\n@triton.jit\ndef outer(v): return inner(v)\nFACTOR = 2.0\n"
    rejection = trace(HEAD.replace("@triton.jit", helpers + "@triton.jit", 1).replace("* 2.0", "* outer(1.0)") + MODEL)
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.COMPILE_ERROR
    assert "Cannot access global variable FACTOR" in rejection.reason


def test_module_level_tensors_are_constants_of_every_plan():
    source = (
        HEAD
        + "TABLE = torch.arange(32, device='cuda').float()\nclass ModelNew(nn.Module):\n    def forward(self, x): return launch(x + TABLE)\n"
    )
    plans = trace(source, spec(name="a"), spec(dense(4, 32), name="b"))
    assert isinstance(plans, list)
    assert [p.input_set for p in plans] == ["a", "b"]
    assert all(
        [n.op for n in p.setup if isinstance(n, AtenNode)] == ["aten.arange.default", "aten._to_copy.default"] for p in plans
    )


def test_buffers_that_are_parts_of_one_tensor_have_memory_of_their_own():
    init = "both = torch.arange(64.).view(2, 32); self.register_buffer('a', both[0]); self.register_buffer('b', both[1])"
    asked = spec(state={"a": dense(32), "b": dense(32)})
    plan = plan_of(module("return launch(x + self.a * self.b)", init), asked)
    held = [(s.source, s.nbytes) for s in plan.storages if s.kind == "state"]
    assert sorted(held) == [("a", 128), ("b", 128)]


@pytest.mark.slow
def test_candidates_do_not_meet():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        bodies = ["return launch(x)", "while True: pass", "torch.zeros = None; raise SystemExit", "return launch(x * 2)"] * 2
        results = list(pool.map(lambda body: trace(module(body), timeout_s=3.0), bodies))
    for first, second in ((0, 4), (3, 7)):
        assert results[first] == results[second]
        assert isinstance(results[first], list)
    stopped = [r.status for r in results[1:3] if isinstance(r, Rejection)]
    assert stopped == [Status.TIMEOUT, Status.TRACE_ERROR]


TASK = Task("t", """
import torch, torch.nn as nn
N = 128
class Model(nn.Module):
    def __init__(self, i, o, shape):
        super().__init__()
        self.linear, self.bn, self.b = nn.Linear(i, o), nn.BatchNorm1d(o), nn.Parameter(torch.randn(shape))
    def forward(self, x, scale):
        return torch.relu(self.bn(self.linear(x))) * scale + self.b
def get_inputs():
    return [torch.rand(N, 64), 2.0]
def get_init_inputs():
    return [64, 32, (32,)]
""")  # fmt: skip


def test_specs_of_a_task():
    found = spec_of(TASK, InputSet("ragged", {"N": 13}), "fp16", "sm_90")
    assert found.inputs == (dense(13, 64, dtype="float16"), 2.0)
    assert found.init_inputs == (64, 32, (32,))
    assert list(found.state)[:3] == ["b", "linear.weight", "linear.bias"]
    assert found.state["bn.num_batches_tracked"].dtype == "int64"
    assert found.training
    assert outputs_of(TASK, InputSet(FULL), "fp32", "sm_90") == (dense(128, 32),)


CONFIGURED = (
    HEAD
    + """
import dataclasses
@dataclasses.dataclass
class Inner:
    rate: float = 0.5
class Config:
    width = 32
    def __init__(self):
        self.rows, self.inner, self.seen = 8, Inner(), {1, 2}
    @property
    def size(self):
        return self.rows * self.width
    def scaled(self):
        return 0
class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.rate = config.inner.rate * config.size
    def forward(self, x):
        return %s * self.rate
def get_inputs():
    return [torch.rand(Config().rows, Config.width)]
def get_init_inputs():
    return [Config()]
"""
)


def test_a_constructor_may_take_an_object_that_holds_settings():
    task = Task("t", CONFIGURED % "x")
    (settings,) = spec_of(task, InputSet(FULL), "fp32", "sm_90").init_inputs
    assert vars(settings) == {"inner": SimpleNamespace(rate=0.5), "rows": 8, "size": 256, "width": 32}
    plan = plan_of((CONFIGURED % "launch(x)").replace("Model(", "ModelNew("), spec_of(task, InputSet(FULL), "fp32", "sm_90"))
    assert [n.args[1] for n in plan.nodes if isinstance(n, AtenNode) and n.op == "aten.mul.Tensor"] == [128.0]


HELD = """
import datetime, enum, pathlib
import numpy as np, torch
class Kind(enum.IntEnum):
    SAME = 1
class Inner:
    def __init__(self, outer):
        self.outer, self.rate, self.number = outer, 0.5, np.float32(0.5)
class Config:
    rows = 8
    def __init__(self):
        self.inner, self.folder = Inner(self), pathlib.Path("a")
    @property
    def missing(self):
        raise RuntimeError("not yet")
    @property
    def another(self):
        return Config()
class Model(torch.nn.Module):
    def __init__(self, setting):
        super().__init__()
    def forward(self, x):
        return x
def get_inputs():
    return [torch.rand(4)]
def get_init_inputs():
    return [%s]
"""


def test_settings_that_hold_themselves_or_cannot_be_read_are_left_out():
    (found,) = spec_of(Task("t", HELD % "Config()"), InputSet(FULL), "fp32", "sm_90").init_inputs
    assert vars(found).keys() == {"rows", "inner", "another"}
    assert (found.rows, found.inner, found.another.rows) == (8, SimpleNamespace(rate=0.5), 8)


@pytest.mark.parametrize(("made", "number"), [("np.float64(0.5)", 0.5), ("Kind.SAME", 1)])
def test_a_setting_that_is_a_number_stays_one(made, number):
    (found,) = spec_of(Task("t", HELD % made), InputSet(FULL), "fp32", "sm_90").init_inputs
    assert found == number


@pytest.mark.parametrize("made", ["np.float32(0.5)", "pathlib.Path('a')", "datetime.date(2020, 1, 1)"])
def test_a_value_of_a_library_is_no_object_of_settings(made):
    """Its parts are of its own kind, without end."""
    with pytest.raises(UsageError, match=r"an input of type (float32|PosixPath|date) is not supported"):
        spec_of(Task("t", HELD % made), InputSet(FULL), "fp32", "sm_90")


def test_the_reference_is_a_plan_too():
    plan = reference_plan(TASK, InputSet(FULL), "fp32", "sm_90")
    assert ops(plan) == [
        "aten.addmm.default",
        "aten.native_batch_norm.default",
        "aten.relu.default",
        "aten.mul.Tensor",
        "aten.add.Tensor",
    ]
    assert {s.source for s in plan.storages if s.kind == "state"} == {
        "b",
        "linear.weight",
        "linear.bias",
        "bn.weight",
        "bn.bias",
    }


TRUNCATED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.empty(32, 32))
        nn.init.trunc_normal_(self.w, std=0.02)
        nn.init.trunc_normal_(self.w, mean=3.0)
    def forward(self, x):
        return {} @ self.w
def get_inputs():
    return [torch.rand(8, 32)]
def get_init_inputs():
    return []
"""


def test_an_initialiser_that_draws_until_it_likes_the_numbers_is_traced():
    task = Task("t", HEAD + TRUNCATED.format("x"))
    assert ops(reference_plan(task, InputSet(FULL), "fp32", "sm_90")) == ["aten.mm.default"]
    source = (HEAD + TRUNCATED.format("launch(x)")).replace("Model(", "ModelNew(")
    assert ops(plan_of(source, spec_of(task, InputSet(FULL), "fp32", "sm_90"))) == ["aten.mm.default"]
    found = trace(source, spec(dense(8, 32)))
    assert isinstance(found, Rejection)
    assert "w [32, 32]" in found.reason, "of which nobody knows the numbers"


COUNTING = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(32, momentum=None)
    def forward(self, x):
        return self.norm(x)
def get_inputs():
    return [torch.rand(8, 32)]
def get_init_inputs():
    return []
"""


def test_a_reference_whose_batch_norm_counts_its_batches_is_traced():
    plan = reference_plan(Task("t", HEAD + COUNTING), InputSet(FULL), "fp32", "sm_90")
    assert ops(plan)[-1:] == ["aten.native_batch_norm.default"]


@pytest.mark.slow
def test_a_trace_of_many_gibibytes_needs_none() -> None:
    """The sandbox has 2 GiB; inputs, parameters and outputs would take 24."""
    source = (
        HEAD
        + """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(1 << 16, 1 << 15))
        self.table = torch.randn(1 << 16, 1 << 15, device="cuda") * 0 + 1

    def forward(self, x):
        return launch(x + self.w)
"""
    )
    shape = 1 << 16, 1 << 15
    plan = plan_of(source, spec(dense(*shape), state={"w": dense(*shape)}))
    assert sum(s.nbytes for s in plan.storages) >= 24 << 30


FAILS = {
    "a cause of itself": ("e, f = ValueError('why'), ValueError(); e.__cause__, f.__cause__ = f, e\nraise e", "ValueError: why"),
    "no text": (
        "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd", "Odd, which does not say what is wrong [line",
    ),
    "four axes": ("double[(4, 1, 1, 1)](x, x, 256, BLOCK=64)", "the grid has 4 numbers"),
    "a negative grid": ("double[(-4,)](x, x, 256, BLOCK=64)", "a negative number of programs"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "says"), cases(FAILS))
def test_what_fails_says_why(body, says):
    rejection = trace(module(body))
    assert isinstance(rejection, Rejection)
    assert rejection.status is Status.TRACE_ERROR
    assert says in rejection.reason


def test_a_constructor_may_read_its_own_constants_again_after_a_launch():
    """Another object is made once forward has launched kernels."""
    plan_of(module("return launch(x)", init="self.size = int(torch.tensor(3.0))"))


BODIES = {
    "for CUDA and for all": "L.impl('f', f, 'CUDA')\nL.impl('f', lambda x: x.exp(), 'CompositeExplicitAutograd')\n",
    "around another": "L.impl('f', f, 'CUDA')\nL.impl('f', lambda x: torch.ops.mine.f(x), 'Autograd')\n",
}


@pytest.mark.parametrize("bodies", BODIES.values(), ids=BODIES.keys())
def test_the_body_is_traced_that_torch_would_call(bodies):
    source = HEAD + (
        "L = torch.library.Library('mine', 'DEF')\nL.define('f(Tensor x) -> Tensor')\ndef f(x): return launch(x)\n"
        f"{bodies}class ModelNew(nn.Module):\n    def forward(self, x): return torch.ops.mine.f(x)\n"
    )
    assert len(launches(plan_of(source))) == 1
