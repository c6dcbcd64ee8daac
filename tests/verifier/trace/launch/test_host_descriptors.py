"""Tensor descriptors, made in the kernel or on the host."""

import pytest
import torch
from support.front import HEAD, compiler, dense, interpret, launches, plan_of, spec

from kernrl.verifier.base.verdict import Rejection


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
