# task: qk_norm
# The weights sit in submodules of their own; a tile holds several heads.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _rms(x, w, y, rows, D, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    d = tl.arange(0, BLOCK)[None, :]
    m = (r < rows) & (d < D)
    v = tl.load(x + r * D + d, mask=m, other=0.0)
    inv = 1.0 / tl.sqrt(tl.sum(v * v, axis=1) / D + eps)
    tl.store(y + r * D + d, v * inv[:, None] * tl.load(w + d, mask=d < D, other=0.0), mask=m)


class HeadNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        rows, D = x.numel() // x.shape[-1], x.shape[-1]
        y = torch.empty_like(x)
        _rms[(triton.cdiv(rows, 8),)](x, self.weight, y, rows, D, self.eps, ROWS=8, BLOCK=triton.next_power_of_2(D))
        return y


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.q = HeadNorm(dim, eps)
        self.k = HeadNorm(dim, eps)

    def forward(self, q, k):
        return self.q(q), self.k(k)
