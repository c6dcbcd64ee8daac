# task: row_moments
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def moments(x, var, l1, sq, M, N, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    ok = i < N
    v = tl.load(x + r * N + i, mask=ok, other=0.0)
    mean = tl.sum(v, 0) / N
    d = tl.where(ok, v - mean, 0.0)
    tl.store(var + r, tl.sum(d * d, 0) / (N - 1))
    tl.store(l1 + r, tl.sum(tl.abs(v), 0))
    tl.atomic_add(sq, tl.sum(v * v, 0) / (M * N))


class ModelNew(nn.Module):
    def forward(self, x):
        M, N = x.shape
        stats = torch.empty((2, M), device=x.device, dtype=x.dtype)
        sq = x.new_zeros(())
        moments[(M,)](x, stats[0], stats[1], sq, M, N, BLOCK=triton.next_power_of_2(N))
        return stats[0], stats[1], sq
