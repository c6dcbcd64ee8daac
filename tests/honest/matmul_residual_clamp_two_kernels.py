# task: matmul_residual_clamp
import torch
from torch import nn, Tensor
import triton
import triton.language as tl
from typing import Optional


@triton.jit
def mm(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    cols = tl.cdiv(N, BLOCK)
    i = (pid // cols) * BLOCK + tl.arange(0, BLOCK)
    j = (pid % cols) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(tl.cdiv(K, 16)):
        kk = k * 16 + tl.arange(0, 16)
        a = tl.load(a_ptr + i[:, None] * K + kk, mask=(i[:, None] < M) & (kk < K), other=0.0)
        b = tl.load(b_ptr + kk[:, None] * N + j, mask=(kk[:, None] < K) & (j < N), other=0.0)
        acc = tl.dot(a, b, acc=acc, input_precision="ieee", out_dtype=tl.float32)
    tl.store(c_ptr + i[:, None] * N + j, acc, mask=(i[:, None] < M) & (j < N))


@triton.jit
def tail(c_ptr, r_ptr, o_ptr, numel, scale, low, high, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = offs < numel
    v = tl.load(c_ptr + offs, ok) * scale + tl.load(r_ptr + offs, ok)
    v = tl.where(v < low, low, v)
    tl.store(o_ptr + offs, tl.where(v > high, high, v), ok)


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, scale: float, low: Optional[float], high: Optional[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(in_features, out_features))
        self.args = (scale, low, high)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        (M, K), N = x.shape, self.weight.shape[-1]
        workspace = torch.empty((M, N), dtype=x.dtype, device=x.device)
        out = torch.empty_like(residual)
        mm[(triton.cdiv(M, 32) * triton.cdiv(N, 32),)](x, self.weight, workspace, M, N, K, BLOCK=32)
        tail[(triton.cdiv(out.numel(), 512),)](workspace, residual, out, out.numel(), *self.args, BLOCK=512)
        return out
