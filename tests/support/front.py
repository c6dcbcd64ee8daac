"""What the tests of the verifier's front half share: one tracer, one compiler, and specs made by hand."""

import atexit
import functools
import textwrap
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from torch import Tensor

from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.compile.compiler import Compiler
from kernrl.verifier.interpret.interpreter import Case, interpret_cases
from kernrl.verifier.plan.codec import PlanError, decode
from kernrl.verifier.plan.plan import AtenNode, LaunchNode, Plan, TensorSpec, TraceSpec
from kernrl.verifier.trace.tracer import Traced, Tracer

HEAD = """
import math
import torch, triton
import torch.nn as nn
import torch.nn.functional as F
import triton.language as tl

@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2.0, mask=i < n)

def launch(x):
    y = torch.empty_like(x)
    double[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y
"""

MODEL = "\nclass ModelNew(nn.Module):\n    def forward(self, x): return launch(x)\n"
"""The least candidate, after `HEAD`."""


@functools.cache
def tracer() -> Tracer:
    shared = Tracer(2)
    atexit.register(shared.close)
    return shared


@functools.cache
def compiler() -> Compiler:
    shared = Compiler(2)
    atexit.register(shared.close)
    return shared


def dense(*shape: int, dtype: str = "float32") -> TensorSpec:
    """The spec of a contiguous tensor."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= size
    return TensorSpec(dtype, shape, tuple(reversed(stride)))


def spec(*inputs, init=(), state=None, training=True, precision="fp32", name="full") -> TraceSpec:
    return TraceSpec(name, tuple(init), tuple(inputs or [dense(8, 32)]), state or {}, training, precision, "sm_90")


def module(body: str, init: str = "pass", params: str = "self", args: str = "self, x") -> str:
    """A candidate whose forward is `body`, after the kernel `double` and its `launch`."""
    return (
        HEAD
        + "\nclass ModelNew(nn.Module):\n"
        + f"    def __init__({params}):\n        super().__init__()\n"
        + textwrap.indent(textwrap.dedent(init).strip(), " " * 8)
        + f"\n    def forward({args}):\n"
        + textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
        + "\n"
    )


def trace(source: str, *specs: TraceSpec, timeout_s: float = 20.0) -> list[Plan] | Rejection:
    return plans_in(tracer().trace(source, specs or [spec()], timeout_s))


def plans_in(traced: Traced | Rejection) -> list[Plan] | Rejection:
    """The plans that came out of the sandbox."""
    if isinstance(traced, Rejection):
        return traced
    try:
        return [decode(frame) for frame in traced.frames]
    except PlanError as error:
        return Rejection(Status.TRACE_ERROR, f"The trace came back malformed ({error}).")


def plan_of(source: str, *specs: TraceSpec) -> Plan:
    """The plan at the first spec; fails the test with the reason when there is none."""
    plans = trace(source, *specs)
    assert isinstance(plans, list), plans
    return plans[0]


def launches(plan: Plan) -> list[LaunchNode]:
    return [n for n in plan.nodes if isinstance(n, LaunchNode)]


def ops(plan: Plan) -> list[str]:
    """The names of what is called of PyTorch, in order."""
    return [n.op for n in plan.nodes if isinstance(n, AtenNode)]


def cases(named: Mapping[str, tuple[Any, ...]], slow: Collection[str] = ()) -> list[Any]:
    """Parameters of a test, by their names; `slow`: those that are marked so."""
    return [pytest.param(*values, id=name, marks=[pytest.mark.slow] if name in slow else []) for name, values in named.items()]


def interpret(plan: Plan, tensors: Mapping[int | str, Tensor], *, timeout_s: float = 60.0) -> list[Tensor] | Rejection:
    """Forward's outputs on CPU tensors, by the interpreter."""
    found = interpret_cases(plan, [Case(tensors)], timeout_s=timeout_s)
    return found if isinstance(found, Rejection) else found[0]
