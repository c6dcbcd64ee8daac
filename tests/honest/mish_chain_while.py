# task: mish_chain
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def mish_chain(x, y, n, scale, BLOCK: tl.constexpr):
    blk = tl.program_id(0)
    while blk * BLOCK < n:
        i = blk * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < n, other=0.0)
        t = v * scale
        e = tl.exp(tl.minimum(t, 20.0))
        m = e * (e + 2.0)
        t = tl.where(t > 20.0, t, t * m / (m + 2.0))
        tl.store(y + i, tl.minimum(tl.maximum(t + v, -1.0), 3.0), mask=i < n)
        blk += tl.num_programs(0)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        mish_chain[(8,)](x, y, n, self.scale, BLOCK=32)
        return y
