# habit: A workspace is kept between calls, and filled anew in each.
# task: mish_chain
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def mish_chain(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    t = v * scale
    e = tl.exp(tl.minimum(t, 20.0))
    m = e * (e + 2.0)
    t = tl.where(t > 20.0, t, t * m / (m + 2.0))
    tl.store(y + i, tl.minimum(tl.maximum(t + v, -1.0), 3.0), mask=i < n)


@triton.jit
def copied(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.work = None

    def forward(self, x):
        if self.work is None or self.work.shape != x.shape:
            self.work = torch.empty_like(x)
        y, n = torch.empty_like(x), x.numel()
        mish_chain[(triton.cdiv(n, 1024),)](x, self.work, n, self.scale, BLOCK=1024)
        copied[(triton.cdiv(n, 1024),)](self.work, y, n, BLOCK=1024)
        return y
