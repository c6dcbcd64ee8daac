# task: add_layernorm
# Three kernels and two workspaces: the sum, the statistics of a row, and their application; parameters of its own, same names.
import torch
import torch.nn as nn
import triton
import triton.language as tl

BLOCK = 256


@triton.jit
def add(a, b, c, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(c + i, tl.load(a + i, mask=i < n) + tl.load(b + i, mask=i < n), mask=i < n)


@triton.jit
def stats(s, mean_rstd, D, eps, B: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, B)
    v = tl.load(s + row * D + i, mask=i < D, other=0.0)
    mu = tl.sum(v) / D
    dev = tl.where(i < D, v - mu, 0.0)
    tl.store(mean_rstd + row * 2, mu)
    tl.store(mean_rstd + row * 2 + 1, tl.rsqrt(tl.sum(dev * dev) / D + eps))


@triton.jit
def apply(s, mean_rstd, w, b, y, n, D, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    row = i // D
    v = (tl.load(s + i, mask=m) - tl.load(mean_rstd + row * 2, mask=m)) * tl.load(mean_rstd + row * 2 + 1, mask=m)
    tl.store(y + i, v * tl.load(w + i % D, mask=m) + tl.load(b + i % D, mask=m), mask=m)


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = Norm(dim)

    def forward(self, x, residual):
        n, D = x.numel(), x.shape[-1]
        s, y = torch.empty_like(x), torch.empty_like(x)
        mean_rstd = torch.empty(n // D, 2, device=x.device, dtype=torch.float32)
        blocks = (n + BLOCK - 1) // BLOCK
        add[(blocks,)](x, residual, s, n, B=BLOCK)
        stats[(n // D,)](s, mean_rstd, D, 1e-5, B=triton.next_power_of_2(D))
        apply[(blocks,)](s, mean_rstd, self.norm.weight, self.norm.bias, y, n, D, B=BLOCK)
        return y
