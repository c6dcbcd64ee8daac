# task: square_by_rows
# A program goes along its rows until a flag says that the end is reached; its pointer moves with it.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def strip(x, y, N, ROWS: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    a = tl.load(x + i, mask=i < N, other=0.0)
    j = tl.arange(0, B)
    source, target = x + j, y + i[:, None] * N + j[None, :]
    left = N
    done = left <= 0
    while not done:
        b = tl.load(source, mask=j < left, other=0.0)
        tl.store(target, tl.exp(-tl.abs(a[:, None] - b[None, :])), mask=(i[:, None] < N) & (j[None, :] < left))
        source += B
        target += B
        left -= B
        done = left <= 0


class ModelNew(nn.Module):
    def forward(self, x):
        N = x.shape[0]
        y = x.new_empty(N, N)
        strip[(triton.cdiv(N, 4),)](x, y, N, ROWS=4, B=64)
        return y
