"""Launches of a kernel with configurations: each that compiles is recorded, and what hooks do comes before."""

import pytest
from support.front import HEAD, MODEL, launches, module, plan_of, trace

from kernrl.verifier.base.verdict import Rejection, Status


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


def test_an_autotuner_may_be_imported_by_its_name():
    tuned = HEAD.replace("@triton.jit", "@triton.autotune([triton.Config({'BLOCK': 64})], key=['n'])\n@triton.jit").replace(
        ", BLOCK=64", ""
    )
    assert launches(plan_of("from triton.runtime.autotuner import Autotuner\n" + tuned + MODEL))


TUNED = HEAD.replace(
    "@triton.jit", "@triton.autotune([triton.Config({'BLOCK': 32}), triton.Config({'BLOCK': 64})], key=['n'])\n@triton.jit"
)


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


IMPORTS = HEAD.partition("@triton.jit")[0]


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
