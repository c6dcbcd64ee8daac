# task: softmax_temperature
# The running maximum and sum in one pass over blocks, exponentials by exp2 with the factor folded in.
import math

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def online(x_ptr, y_ptr, N, factor, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * N
    m = -float("inf")
    s = 0.0
    for k in range(0, N, BLOCK):
        i = k + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + row + i, mask=i < N, other=-float("inf"))
        new = tl.maximum(m, tl.max(v, axis=0))
        s = s * tl.exp2((m - new) * factor) + tl.sum(tl.exp2((v - new) * factor), axis=0)
        m = new
    for k in range(0, N, BLOCK):
        i = k + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + row + i, mask=i < N, other=0.0)
        tl.store(y_ptr + row + i, tl.exp2((v - m) * factor) / s, mask=i < N)


class ModelNew(nn.Module):
    def __init__(self, temperature: float):
        super().__init__()
        self.factor = math.log2(math.e) / temperature

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        online[(x.shape[0],)](x, y, x.shape[1], self.factor, BLOCK=32)
        return y
