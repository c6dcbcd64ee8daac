# task: normed_softmax
# Autotuned, so that a GPU, which has no IR of its kernels, is asked whether the maximum does anything.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_norm(x, y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * N + i, mask=i < N, other=0.0).to(tl.float32)
    d = tl.where(i < N, v - tl.sum(v, axis=0) / N, 0.0)
    tl.store(y + row * N + i, d * tl.rsqrt(tl.sum(d * d, axis=0) / N + 1e-5), mask=i < N)


@triton.autotune([triton.Config({}, num_warps=w) for w in (2, 4)], key=["N"])
@triton.jit
def row_max(y, top, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(top + row, tl.max(tl.load(y + row * N + i, mask=i < N, other=-float("inf")), axis=0))


@triton.jit
def row_total(y, top, total, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(y + row * N + i, mask=i < N, other=-float("inf"))
    tl.store(total + row, tl.sum(tl.exp(v - tl.load(top + row)), axis=0))


@triton.jit
def row_shares(y, top, total, z, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(y + row * N + i, mask=i < N)
    tl.store(z + row * N + i, tl.exp(v - tl.load(top + row)) / tl.load(total + row), mask=i < N)


class ModelNew(nn.Module):
    def forward(self, x):
        M, N = x.shape
        y, z = torch.empty_like(x), torch.empty_like(x)
        top, total = (torch.empty(M, device=x.device, dtype=torch.float32) for _ in range(2))
        BLOCK = triton.next_power_of_2(N)
        row_norm[(M,)](x, y, N, BLOCK=BLOCK)
        row_max[(M,)](y, top, N, BLOCK=BLOCK)
        row_total[(M,)](y, top, total, N, BLOCK=BLOCK)
        row_shares[(M,)](y, top, total, z, N, BLOCK=BLOCK)
        return z
