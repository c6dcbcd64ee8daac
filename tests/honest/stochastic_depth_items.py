# task: stochastic_depth
import math

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def step(x, z, y, n, k, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(y + i, tl.load(x + i, mask=m) + tl.maximum(tl.load(z + i, mask=m), 0.0) * k, mask=m)


class ModelNew(nn.Module):
    def __init__(self, depth, rate, n):
        super().__init__()
        rates = [x.item() for x in torch.linspace(0, rate, depth)]
        width = n
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.factors = [(1 - r) * math.sqrt(torch.tensor(2.0)) for r in rates]

    def forward(self, x):
        for block, k in zip(self.blocks, self.factors):
            z, y = block(x), torch.empty_like(x)
            step[(triton.cdiv(x.numel(), 256),)](x, z, y, x.numel(), k, BLOCK=256)
            x = y
        return x
