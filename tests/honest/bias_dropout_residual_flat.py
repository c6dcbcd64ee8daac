# task: bias_dropout_residual
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bias_dropout_add(x, bias, kept, residual, out, n, D, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(x + i, mask=m) + tl.load(bias + i % D, mask=m)
    keep = tl.load(kept + i, mask=m, other=0).to(tl.int1)
    tl.store(out + i, tl.where(keep, v * scale, 0.0) + tl.load(residual + i, mask=m), mask=m)


def bias_dropout_add_impl(x, bias, kept, residual, p):
    out = torch.empty_like(residual)
    n = x.numel()
    bias_dropout_add[(triton.cdiv(n, 128),)](x, bias, kept, residual, out, n, x.size(-1), 1.0 / (1.0 - p), BLOCK=128)
    return out


class ModelNew(nn.Module):
    def __init__(self, dim, p):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))
        self.p = float(p)

    def forward(self, x, kept, residual):
        return bias_dropout_add_impl(x, self.bias, kept, residual, self.p)
