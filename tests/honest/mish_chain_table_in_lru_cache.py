# habit: A table is made once for all calls by functools.lru_cache.
# task: mish_chain
from functools import lru_cache

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


@lru_cache(maxsize=None)
def factors(scale, device):
    return torch.full((1,), scale, dtype=torch.float32, device=device)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y, n = torch.empty_like(x), x.numel()
        mish_scaled[(triton.cdiv(n, 1024),)](x, factors(self.scale, "cuda"), y, n, BLOCK=1024)
        return y
