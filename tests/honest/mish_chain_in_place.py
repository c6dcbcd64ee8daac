# task: mish_chain
# Three passes over one buffer: the first fills it, the others change it in place.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scaled(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * scale, mask=i < n)


@triton.jit
def mish_(y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(y + i, mask=i < n)
    e = tl.exp(tl.minimum(v, 20.0))
    m = e * (e + 2.0)
    tl.store(y + i, tl.where(v > 20.0, v, v * m / (m + 2.0)), mask=i < n)


@triton.jit
def add_and_clamp_(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(y + i, mask=i < n) + tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.clamp(v, -1.0, 3.0), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y, n = torch.empty_like(x), x.numel()
        grid = (triton.cdiv(n, 256),)
        scaled[grid](x, y, n, self.scale, BLOCK=256)
        mish_[grid](y, n, BLOCK=256)
        add_and_clamp_[grid](x, y, n, BLOCK=256)
        return y
