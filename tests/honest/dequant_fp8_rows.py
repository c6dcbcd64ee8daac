# task: dequant_fp8
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def dequantize(code, scale, bias, y, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    s = tl.load(scale + row)
    i = tl.arange(0, BLOCK)
    v = tl.load(code + row * D + i, mask=i < D, other=0.0).to(tl.float32) * s
    tl.store(y + row * D + i, v + tl.load(bias + i, mask=i < D, other=0.0), mask=i < D)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, code, scale):
        T, D = code.shape
        y = torch.empty((T, D), device=code.device, dtype=scale.dtype)
        dequantize[(T,)](code, scale, self.bias, y, D, BLOCK=triton.next_power_of_2(D))
        return y
