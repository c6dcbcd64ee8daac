# task: add_layernorm
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_norm(x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    keep = i < D
    v = tl.load(x_ptr + row * D + i, mask=keep, other=0.0) + tl.load(r_ptr + row * D + i, mask=keep, other=0.0)
    mean = tl.sum(v, axis=0) / D
    d = tl.where(keep, v - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(d * d, axis=0) / D + eps)
    w = tl.load(w_ptr + i, mask=keep)
    b = tl.load(b_ptr + i, mask=keep)
    tl.store(y_ptr + row * D + i, d * rstd * w + b, mask=keep)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, residual):
        D = x.shape[-1]
        y = torch.empty_like(x)
        add_norm[(x.numel() // D,)](
            x, residual, self.norm.weight, self.norm.bias, y, D, self.norm.eps, BLOCK=triton.next_power_of_2(D), num_warps=4
        )
        return y
