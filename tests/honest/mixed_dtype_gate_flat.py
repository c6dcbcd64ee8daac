# task: mixed_dtype_gate
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def k(x, y, pos, trunc, n, slope, scale, HAS_RES: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(x + i, mask=m)
    v = tl.where(v > 0, v, v * slope) * scale
    tl.store(y + i, v, mask=m)
    tl.store(pos + i, v > 0, mask=m)
    tl.store(trunc + i, v.to(tl.int32), mask=m)


class ModelNew(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x, scale, negative=True, residual=None):
        y = torch.empty_like(x)
        pos = torch.empty_like(x, dtype=torch.bool)
        trunc = torch.empty(x.shape, dtype=torch.int32, device=x.device)
        k[(triton.cdiv(x.numel(), 128),)](x, y, pos, trunc, x.numel(), self.slope, scale, residual is not None, BLOCK=128)
        return (y, pos, trunc) if negative else y
