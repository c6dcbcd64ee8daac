# task: add_layernorm
# One pass over a row by Welford's update, block by block, then a second pass that writes.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def welford_norm(x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * D
    r_ptr += row * D
    y_ptr += row * D
    count = 0.0
    mean = 0.0
    m2 = 0.0
    for s in range(0, D, BLOCK):
        i = s + tl.arange(0, BLOCK)
        keep = i < D
        v = tl.load(x_ptr + i, mask=keep, other=0.0) + tl.load(r_ptr + i, mask=keep, other=0.0)
        n = tl.minimum(D - s, BLOCK).to(tl.float32)
        block_mean = tl.sum(v, axis=0) / n
        d = tl.where(keep, v - block_mean, 0.0)
        delta = block_mean - mean
        total = count + n
        mean += delta * n / total
        m2 += tl.sum(d * d, axis=0) + delta * delta * count * n / total
        count = total
    rstd = 1.0 / tl.sqrt(m2 / D + eps)
    for s in range(0, D, BLOCK):
        i = s + tl.arange(0, BLOCK)
        keep = i < D
        v = tl.load(x_ptr + i, mask=keep, other=0.0) + tl.load(r_ptr + i, mask=keep, other=0.0)
        w = tl.load(w_ptr + i, mask=keep, other=0.0)
        b = tl.load(b_ptr + i, mask=keep, other=0.0)
        tl.store(y_ptr + i, (v - mean) * rstd * w + b, mask=keep)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.dim = dim

    def forward(self, x, residual):
        shape = x.shape
        x2, r2 = x.reshape(-1, self.dim), residual.reshape(-1, self.dim)
        y = torch.empty_like(x2)
        welford_norm[(x2.shape[0],)](x2, r2, self.norm.weight, self.norm.bias, y, self.dim, 1e-5, BLOCK=32)
        return y.view(shape)
