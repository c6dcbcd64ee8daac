# task: square_by_rows
# Columns in strips, each strip's programs go along the diagonals that cross it; the mask is three-sided.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bands(x, y, N, B: tl.constexpr, W: tl.constexpr):
    strip = tl.program_id(0)
    j = strip * W + tl.arange(0, W)
    b = tl.load(x + j, mask=j < N, other=0.0)
    for diagonal in range(-(strip * W) // B - W // B - 1, tl.cdiv(N, B)):
        i = diagonal * B + strip * W + tl.arange(0, B)
        a = tl.load(x + i, mask=(i >= 0) & (i < N), other=0.0)
        e = tl.exp(-tl.abs(a[:, None] - b[None, :]))
        tl.store(y + i[:, None] * N + j[None, :], e, mask=(i[:, None] >= 0) & (i[:, None] < N) & (j[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, x):
        N = x.shape[0]
        y = x.new_empty(N, N)
        bands[(triton.cdiv(N, 64),)](x, y, N, B=16, W=64)
        return y
