# task: row_stats
# Each program takes an even share of the rows but the last ones, which may get less or none.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def shares(x, y, std, M, N, share, BLOCK: tl.constexpr):
    first = tl.program_id(0) * share
    last = min(first + share, M)
    if first >= M:
        return
    row = first
    while row < last:
        mean, square, count = 0.0, 0.0, 0.0
        for start in range(0, N, BLOCK):
            i = start + tl.arange(0, BLOCK)
            v = tl.load(x + row * N + i, mask=i < N, other=0.0)
            mean += tl.sum(v, 0)
        mean = mean / N
        for start in range(0, N, BLOCK):
            i = start + tl.arange(0, BLOCK)
            v = tl.where(i < N, tl.load(x + row * N + i, mask=i < N, other=0.0) - mean, 0.0)
            square += tl.sum(v * v, 0)
        deviation = tl.sqrt(square / (N - 1)) + 1e-3
        for start in range(0, N, BLOCK):
            i = start + tl.arange(0, BLOCK)
            v = tl.load(x + row * N + i, mask=i < N)
            tl.store(y + row * N + i, (v - mean) / deviation, mask=i < N)
        tl.store(std + row, deviation)
        row += 1


class ModelNew(nn.Module):
    def forward(self, x):
        M, N = x.shape
        y, std = torch.empty_like(x), torch.empty((M, 1), device=x.device, dtype=x.dtype)
        programs = 2 * torch.cuda.get_device_properties(x.device).multi_processor_count
        shares[(programs,)](x, y, std, M, N, triton.cdiv(M, programs), BLOCK=512)
        return y, std
