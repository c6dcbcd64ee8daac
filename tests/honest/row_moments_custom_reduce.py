# task: row_moments
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def _combine(m_a, s_a, n_a, m_b, s_b, n_b):
    n = n_a + n_b
    d = m_b - m_a
    f = tl.where(n > 0, n_b / tl.maximum(n, 1.0), 0.0)
    return m_a + d * f, s_a + s_b + d * d * n_a * f, n


@triton.jit
def moments(x, var, l1, sq, M, N, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    ok = i < N
    v = tl.load(x + r * N + i, mask=ok, other=0.0)
    mean, m2, n = tl.reduce((v, tl.zeros_like(v), ok.to(tl.float32)), 0, _combine)
    tl.store(var + r, m2 / (n - 1.0))
    tl.store(l1 + r, tl.sum(tl.abs(v), 0))
    tl.atomic_add(sq, tl.sum(v * v, 0) / (M * N))


class ModelNew(nn.Module):
    def forward(self, x):
        M, N = x.shape
        var, l1 = torch.empty((2, M), device=x.device, dtype=x.dtype).unbind(0)
        sq = x.new_zeros(())
        moments[(M,)](x, var, l1, sq, M, N, BLOCK=triton.next_power_of_2(N))
        return var.clone(), l1.clone(), sq
