# task: normed_logsumexp
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


@triton.jit
def part_max(y, top, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(y + row * N + i, mask=i < N, other=-float("inf"))
    tl.store(top + row * tl.num_programs(1) + tl.program_id(1), tl.max(v, axis=0))


@triton.jit
def row_max(parts, top, P, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(top + row, tl.max(tl.load(parts + row * P + i, mask=i < P, other=-float("inf")), axis=0))


@triton.jit
def row_total(y, top, total, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(y + row * N + i, mask=i < N, other=-float("inf"))
    tl.store(total + row, tl.sum(tl.exp(v - tl.load(top + row)), axis=0))


@triton.jit
def tanh_of_log(top, total, z, M, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = (tl.load(top + i, mask=i < M, other=0.0) + tl.log(tl.load(total + i, mask=i < M, other=1.0))) * 0.1
    e = tl.exp(-2.0 * tl.abs(v))
    t = (1.0 - e) / (1.0 + e)
    tl.store(z + i, tl.where(v < 0, -t, t), mask=i < M)


class ModelNew(nn.Module):
    def forward(self, x):
        M, N = x.shape
        P = triton.cdiv(N, 32)
        y, z = torch.empty_like(x), torch.empty(M, device=x.device, dtype=x.dtype)
        parts = torch.empty((M, P), device=x.device, dtype=torch.float32)
        top, total = (torch.empty(M, device=x.device, dtype=torch.float32) for _ in range(2))
        BLOCK = triton.next_power_of_2(N)
        row_norm[(M,)](x, y, N, BLOCK=BLOCK)
        part_max[(M, P)](y, parts, N, BLOCK=32)
        row_max[(M,)](parts, top, P, BLOCK=triton.next_power_of_2(P))
        row_total[(M,)](y, top, total, N, BLOCK=BLOCK)
        tanh_of_log[(triton.cdiv(M, 128),)](top, total, z, M, BLOCK=128)
        return z
