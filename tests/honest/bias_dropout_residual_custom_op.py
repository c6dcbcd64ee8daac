# task: bias_dropout_residual
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows(x, bias, kept, residual, out, T, D, p, BT: tl.constexpr, BD: tl.constexpr):
    t = tl.program_id(0) * BT + tl.arange(0, BT)[:, None]
    d = tl.program_id(1) * BD + tl.arange(0, BD)[None, :]
    m = (t < T) & (d < D)
    at = t * D + d
    v = (tl.load(x + at, mask=m, other=0.0) + tl.load(bias + d, mask=d < D, other=0.0)) / (1 - p)
    v = tl.where(tl.load(kept + at, mask=m, other=0) != 0, v, 0.0)
    tl.store(out + at, v + tl.load(residual + at, mask=m, other=0.0), mask=m)


@torch.library.custom_op("fused_dropout::add", mutates_args=(), device_types="cuda")
def fused_add(x: torch.Tensor, bias: torch.Tensor, kept: torch.Tensor, residual: torch.Tensor, p: float) -> torch.Tensor:
    T, D = x.shape
    out = torch.empty_like(x)
    rows[triton.cdiv(T, 4), triton.cdiv(D, 32)](x, bias, kept, residual, out, T, D, p, BT=4, BD=32)
    return out


@fused_add.register_fake
def _(x, bias, kept, residual, p):
    return torch.empty_like(x)


class ModelNew(nn.Module):
    def __init__(self, dim, p):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))
        self.p = p

    def forward(self, x, kept, residual):
        return torch.ops.fused_dropout.add(x, self.bias, kept, residual, self.p)
