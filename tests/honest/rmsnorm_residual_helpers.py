# task: rmsnorm_residual
"""RMS norm with a residual.

Use it like this:

```python
norm = ModelNew(4096, 1e-6)
y, s = norm(x, residual)
```
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def load_row(ptr, row, stride, cols, n):
    return tl.load(ptr + row * stride + cols, mask=cols < n, other=0.0).to(tl.float32)


@triton.jit
def inverse_rms(x, n, eps):
    return 1.0 / tl.sqrt(tl.sum(x * x, 0) / n + eps)


@triton.jit
def norm_rows(x, r, w, y, s, rows, n, stride, eps, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    weight = tl.load(w + cols, mask=cols < n, other=0.0)
    first = tl.program_id(0) * ROWS
    for row in range(first, min(first + ROWS, rows)):
        both = load_row(x, row, stride, cols, n) + load_row(r, row, stride, cols, n)
        tl.store(s + row * stride + cols, both, mask=cols < n)
        tl.store(y + row * stride + cols, both * inverse_rms(both, n, eps) * weight, mask=cols < n)


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def extra_repr(self):
        return f"eps={self.eps}"

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        y, s = (torch.empty_like(x) for _ in range(2))
        rows, n = x.shape
        norm_rows[(triton.cdiv(rows, 2),)](
            x, residual, self.weight, y, s, rows, n, x.stride(0), self.eps, BLOCK=triton.next_power_of_2(n), ROWS=2
        )
        return y, s
