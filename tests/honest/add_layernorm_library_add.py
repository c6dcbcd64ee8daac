# task: add_layernorm
# The sum by torch (an unfused pointwise op, allowed and counted), the norm in Triton, early return for an empty batch.
import torch
from torch import nn
import triton
from triton import language as tl


@triton.jit
def norm(V, W, B, Y, D, eps, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(V + pid * D + cols, cols < D, 0.0)
    mu = tl.sum(v, 0) / D
    c = tl.where(cols < D, v - mu, 0.0)
    y = c / tl.sqrt(tl.sum(c * c, 0) / D + eps)
    tl.store(Y + pid * D + cols, tl.fma(y, tl.load(W + cols, cols < D), tl.load(B + cols, cols < D)), cols < D)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, residual):
        if x.numel() == 0:
            return torch.empty_like(x)
        s = x + residual
        flat = s.view(-1, s.shape[-1])
        y = torch.empty_like(flat)
        norm[(flat.shape[0],)](flat, self.norm.weight, self.norm.bias, y, flat.shape[1], self.norm.eps,
                               BLOCK=triton.next_power_of_2(flat.shape[1]))  # fmt: skip
        return y.view_as(x)
