# habit: A table is made at the first call and kept on the object.
# task: mish_chain
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def mish_scaled(x, factor, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    t = v * tl.load(factor)
    e = tl.exp(tl.minimum(t, 20.0))
    m = e * (e + 2.0)
    t = tl.where(t > 20.0, t, t * m / (m + 2.0))
    tl.store(y + i, tl.minimum(tl.maximum(t + v, -1.0), 3.0), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.factor = None

    def forward(self, x):
        if self.factor is None:
            self.factor = torch.full((1,), self.scale, dtype=torch.float32, device=x.device)
        y, n = torch.empty_like(x), x.numel()
        mish_scaled[(triton.cdiv(n, 1024),)](x, self.factor, y, n, BLOCK=1024)
        return y
