# task: cumsum_rows
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_cumsum(x_ptr, y_ptr, total_ptr, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    carry = 0.0
    for start in range(0, D, BLOCK):
        i = start + tl.arange(0, BLOCK)
        keep = i < D
        v = tl.load(x_ptr + row * D + i, mask=keep, other=0.0)
        tl.store(y_ptr + row * D + i, tl.cumsum(v, axis=0) + carry, mask=keep)
        carry += tl.sum(v, axis=0)
    tl.store(total_ptr + row, carry)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        total = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
        row_cumsum[(x.shape[0],)](x, y, total, x.shape[1], BLOCK=16)
        return y, total
