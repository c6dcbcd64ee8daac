# task: row_stats
# Persistent programs take rows from a queue.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows(x, y, std, queue, M, N, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    r = tl.atomic_add(queue, 1)
    while r < M:
        v = tl.load(x + r * N + i, mask=i < N, other=0.0)
        mean = tl.sum(v, 0) / N
        d = tl.where(i < N, v - mean, 0.0)
        s = tl.sqrt(tl.sum(d * d, 0) / (N - 1)) + 1e-3
        tl.store(y + r * N + i, d / s, mask=i < N)
        tl.store(std + r, s)
        r = tl.atomic_add(queue, 1)


class ModelNew(nn.Module):
    def forward(self, x):
        M, N = x.shape
        y = torch.empty_like(x)
        std = torch.empty(M, 1, device=x.device)
        queue = torch.zeros(1, dtype=torch.int32, device=x.device)
        rows[(min(M, 264),)](x, y, std, queue, M, N, BLOCK=triton.next_power_of_2(N), num_warps=8)
        return y, std
