"""How models write modules is understood: calls, views, decorators, devices and contexts."""

import pytest
from support.front import HEAD, MODEL, dense, launches, module, ops, plan_of, spec

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


@pytest.mark.parametrize("body", HABITS.values(), ids=HABITS.keys())
def test_habits_of_forward(body):
    plan = plan_of(module(body))
    assert len(launches(plan)) == 1
    assert not ops(plan)


INDEXED = {
    "rows and columns": "return launch(x[torch.arange(8), torch.arange(8)])",
    "a column, by rows that lie on the GPU": "return launch(x[torch.arange(8), torch.zeros_like(x[:, 0]).long()])",
    "rows that are written to": "y = x.clone(); y[torch.arange(4)] = x[4:]; return launch(y)",
}


@pytest.mark.parametrize("body", INDEXED.values(), ids=INDEXED)
def test_indices_may_lie_in_host_memory(body):
    assert any("index" in op for op in ops(plan_of(module(body))))


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


def test_annotations_are_evaluated_unless_the_code_says_otherwise():
    check = "def f(a: int): ...\nassert f.__annotations__ == {'a': %s}\n"
    assert launches(plan_of(check % "int" + HEAD + MODEL))
    assert launches(plan_of("from __future__ import annotations\n" + check % "'int'" + HEAD + MODEL))


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
