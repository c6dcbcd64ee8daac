# task: modulated_layernorm
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def modulate(x, shift, scale, y, S, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    b = row // S
    i = tl.arange(0, BLOCK)
    k = i < D
    v = tl.load(x + row * D + i, mask=k, other=0.0)
    mean = tl.sum(v, 0) / D
    v = tl.where(k, v - mean, 0.0)
    v *= tl.rsqrt(tl.sum(v * v, 0) / D + eps)
    g = tl.load(scale + b * D + i, mask=k, other=0.0)
    s = tl.load(shift + b * D + i, mask=k, other=0.0)
    tl.store(y + row * D + i, tl.fma(v, 1.0 + g, s), mask=k)


class ModelNew(nn.Module):
    def forward(self, x, shift, scale):
        B, S, D = x.shape
        y = torch.empty_like(x)
        modulate[(B * S,)](x, shift.contiguous(), scale.contiguous(), y, S, D, 1e-6, BLOCK=triton.next_power_of_2(D))
        return y
