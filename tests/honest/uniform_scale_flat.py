# task: uniform_scale
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def chain(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    t = v * scale
    t = tl.where(t > 0, t, tl.exp(tl.minimum(t, 0.0)) - 1.0)
    tl.store(y + i, tl.sigmoid(t) * v, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        chain[(triton.cdiv(n, 1024),)](x, y, n, self.scale, BLOCK=1024)
        return y
