# habit: A custom operator with autograd registered, whose backward is an operator that writes to arguments.
# task: swiglu_pair
from typing import Optional

import torch
import torch.nn as nn
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def fwd_kernel(g_ptr, u_ptr, o_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    g_ptr += row * n_cols
    u_ptr += row * n_cols
    o_ptr += row * n_cols
    for start in range(0, n_cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        g = tl.load(g_ptr + c, mask=c < n_cols, other=0).to(tl.float32)
        u = tl.load(u_ptr + c, mask=c < n_cols, other=0)
        tl.store(o_ptr + c, (g * tl.sigmoid(g)).cast(u.dtype) * u, mask=c < n_cols)


@triton.jit
def bwd_kernel(do_ptr, g_ptr, u_ptr, dg_ptr, du_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    do = tl.load(do_ptr + i, mask=m, other=0)
    g = tl.load(g_ptr + i, mask=m, other=0)
    u = tl.load(u_ptr + i, mask=m, other=0)
    s = tl.sigmoid(g)
    tl.store(du_ptr + i, do * g * s, mask=m)
    tl.store(dg_ptr + i, do * u * s * (1 + g * (1 - s)), mask=m)


@torch.library.custom_op("honest::swiglu_fwd", mutates_args=(), device_types="cuda")
def swiglu_fwd(gate: Tensor, up: Tensor, block: Optional[int] = None) -> Tensor:
    out = torch.empty_like(gate)
    rows, cols = gate.shape
    fwd_kernel[(rows,)](gate, up, out, cols, BLOCK=block or 1024)
    return out


@swiglu_fwd.register_fake
def _(gate, up, block=None):
    return torch.empty_like(gate)


@torch.library.custom_op("honest::swiglu_bwd", mutates_args=("dg", "du"), device_types="cuda")
def swiglu_bwd(do: Tensor, gate: Tensor, up: Tensor, dg: Tensor, du: Tensor) -> None:
    bwd_kernel[(triton.cdiv(gate.numel(), 1024),)](do, gate, up, dg, du, gate.numel(), BLOCK=1024)


def setup_context(ctx, inputs, output):
    gate, up, _ = inputs
    ctx.save_for_backward(gate, up)


def backward(ctx, grad):
    gate, up = ctx.saved_tensors
    dg, du = torch.empty_like(gate), torch.empty_like(up)
    swiglu_bwd(grad.contiguous(), gate, up, dg, du)
    return dg, du, None


swiglu_fwd.register_autograd(backward, setup_context=setup_context)


class ModelNew(nn.Module):
    def forward(self, gate, up):
        return torch.ops.honest.swiglu_fwd(gate, up)
