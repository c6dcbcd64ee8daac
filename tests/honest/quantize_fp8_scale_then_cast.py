# task: quantize_fp8
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def absmax(x, s, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    top = 0.0
    for i in range(0, D, BLOCK):
        d = i + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.max(tl.abs(tl.load(x + row * D + d, mask=d < D, other=0.0))))
    tl.store(s + row, tl.maximum(top, 1e-6) / 448.0)


@triton.jit
def cast(x, s, y, n, D, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0) / tl.load(s + i // D, mask=i < n, other=1.0)
    tl.store(y + i, v.to(tl.float8e4nv), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        T, D = x.shape
        s = x.new_empty(T, 1)
        absmax[(T,)](x, s, D, BLOCK=16)
        y = torch.empty(T, D, device=x.device, dtype=torch.float8_e4m3fn)
        cast[(triton.cdiv(T * D, 64),)](x, s, y, T * D, D, BLOCK=64)
        return y, s
