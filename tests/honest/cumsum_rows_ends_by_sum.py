# task: cumsum_rows
# How many columns a chunk has is counted by the kernel, and the rows' sums are written with the last chunk.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scan(x, y, total, T, D, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    carry = tl.zeros((ROWS,), tl.float32)
    for start in range(0, D, BLOCK):
        d = start + tl.arange(0, BLOCK)
        valid = tl.sum((d < D).to(tl.int32), axis=0)
        keep = (r[:, None] < T) & (tl.arange(0, BLOCK) < valid)[None, :]
        v = tl.load(x + r[:, None] * D + d[None, :], mask=keep, other=0.0)
        tl.store(y + r[:, None] * D + d[None, :], tl.cumsum(v, axis=1) + carry[:, None], mask=keep)
        carry += tl.sum(v, axis=1)
        if start + BLOCK >= D:
            tl.store(total + r, carry, mask=r < T)


class ModelNew(nn.Module):
    def forward(self, x):
        T, D = x.shape
        y, total = torch.empty_like(x), torch.empty(T, device=x.device)
        scan[(triton.cdiv(T, 4),)](x, y, total, T, D, ROWS=4, BLOCK=128)
        return y, total
