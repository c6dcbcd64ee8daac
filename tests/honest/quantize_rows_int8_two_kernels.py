# task: quantize_rows_int8
# One kernel for the scales, a flat one for the codes; rounding to even by adding and subtracting 1.5 * 2^23.
import torch
import torch.nn as nn
import triton
import triton.language as tl

MAGIC = tl.constexpr(12582912.0)


@triton.jit
def row_scale(x, scale, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    top = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, D, BLOCK):
        c = i + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.abs(tl.load(x + row * D + c, mask=c < D, other=0.0)))
    tl.store(scale + row, tl.maximum(tl.max(top, 0), 1e-6) / 127.0)


@triton.jit
def codes(x, scale, out, n, D, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < n
    v = tl.div_rn(tl.load(x + i, mask=keep), tl.load(scale + i // D, mask=keep, other=1.0))
    v = tl.clamp((v + MAGIC) - MAGIC, -127.0, 127.0)
    tl.store(out + i, v.to(tl.int8), mask=keep)


class ModelNew(nn.Module):
    def forward(self, x):
        T, D = x.shape
        scale = torch.empty((T, 1), device=x.device, dtype=torch.float32)
        out = torch.empty_like(x, dtype=torch.int8)
        row_scale[(T,)](x, scale, D, BLOCK=16)
        codes[(triton.cdiv(T * D, 256),)](x, scale, out, T * D, D, BLOCK=256)
        return out, scale
