# habit: The block size is chosen at the first call for a shape and remembered.
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


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.blocks = {}

    def forward(self, x):
        if x.shape not in self.blocks:
            self.blocks[x.shape] = min(1024, triton.next_power_of_2(x.numel()))
        y, n, block = torch.empty_like(x), x.numel(), self.blocks[x.shape]
        mish_chain[(triton.cdiv(n, block),)](x, y, n, self.scale, BLOCK=block)
        return y
