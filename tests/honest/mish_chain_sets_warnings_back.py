# habit: A warning is silenced around the launch: `warnings` sets names of its module, and sets them back.
# task: mish_chain
import warnings

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

    def forward(self, x):
        y, n = torch.empty_like(x), x.numel()
        with warnings.catch_warnings(), torch.device("cuda"):
            warnings.simplefilter("ignore")
            mish_scaled[(triton.cdiv(n, 1024),)](x, torch.full((1,), self.scale), y, n, BLOCK=1024)
        return y
