# task: masked_cumsum
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def add(a, b):
    return a + b


@triton.jit
def row_cumsum(x, mask, y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    ok = i < N
    v = tl.load(x + row * N + i, mask=ok, other=0.0) * tl.load(mask + row * N + i, mask=ok, other=0).to(tl.float32)
    tl.store(y + row * N + i, tl.associative_scan(v, 0, add), mask=ok)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, mask):
        if x.dim() != 2:
            raise ValueError(f"expected 2D, got {x.dim()}D")
        rows, cols = x.size(0), x.size(-1)
        y = torch.zeros_like(x)
        row_cumsum[(rows,)](x, mask.view(torch.uint8), y, cols, triton.next_power_of_2(cols))
        return y
