# task: row_stats
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def standardise(x, y, s, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * N + i, mask=i < N, other=0.0)
    mean = tl.sum(v) / N
    d = tl.where(i < N, v - mean, 0.0)
    std = tl.sqrt(tl.sum(d * d) / (N - 1)) + 1e-3
    tl.store(y + row * N + i, d / std, mask=i < N)
    tl.store(s + row, std)


class ModelNew(nn.Module):
    def forward(self, x):
        M, N = x.shape
        y, s = torch.empty_like(x), torch.empty((M, 1), device=x.device, dtype=x.dtype)
        standardise[(M,)](x, y, s, N, BLOCK=triton.next_power_of_2(N))
        return y, s
