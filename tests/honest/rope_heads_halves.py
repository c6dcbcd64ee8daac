# task: rope_heads
import torch
import torch.nn as nn
import triton
import triton.language as tl

import math
from typing import Optional


@triton.jit
def rope_kernel(x_ptr, freq_ptr, out_ptr, S, H, D, HALF: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(axis=0)  # b * S * H + s * H + h
    s = (row // H) % S
    i = tl.arange(0, BLOCK)
    m = i < HALF
    f = tl.load(freq_ptr + i, mask=m, other=0.0).to(tl.float32)
    angle = s.to(tl.float32) * f
    c, sn = tl.cos(angle), tl.sin(angle)
    a = tl.load(x_ptr + row * D + i, mask=m).to(tl.float32)
    b = tl.load(x_ptr + row * D + HALF + i, mask=m).to(tl.float32)
    tl.store(out_ptr + row * D + i, (a * c - b * sn).to(out_ptr.dtype.element_ty), mask=m)
    tl.store(out_ptr + row * D + HALF + i, (b * c + a * sn).to(out_ptr.dtype.element_ty), mask=m)


def apply_rope(x: torch.Tensor, inv_freq: torch.Tensor, out: Optional[torch.Tensor] = None) -> torch.Tensor:
    B, S, H, D = x.size()
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    half = D // 2
    rope_kernel[(B * S * H,)](x.contiguous(), inv_freq, out, S, H, D, HALF=half, BLOCK=triton.next_power_of_2(half))
    return out


class ModelNew(nn.Module):
    def __init__(self, dim: int, base: float = 10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=True)

    def forward(self, x):
        return apply_rope(x, self.inv_freq)
