# task: convtranspose_tanh
# tanh from exp(-2|x|), signed afterwards; channels on the grid's second axis.
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def tanh(v):
    t = tl.exp(-2.0 * tl.abs(v))
    r = (1.0 - t) / (1.0 + t)
    return tl.where(v >= 0, r, -r)


@triton.jit
def tail(x_ptr, b_ptr, y_ptr, HW, C, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1)
    n = tl.program_id(2)
    offs = (n * C + c) * HW + i
    v = tl.load(x_ptr + offs, mask=i < HW) - tl.load(b_ptr + c)
    tl.store(y_ptr + offs, tanh(v), mask=i < HW)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels, 3, stride=2, padding=1, output_padding=1)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        conv = self.conv_transpose
        z = F.conv_transpose2d(x, conv.weight, conv.bias, stride=2, padding=1, output_padding=1)
        y = torch.empty_like(z, memory_format=torch.contiguous_format)
        HW = z.shape[-1] * z.shape[-2]
        grid = (triton.cdiv(HW, 256), z.shape[1], z.shape[0])
        tail[grid](z, self.bias, y, HW, z.shape[1], BLOCK=256, num_warps=2, num_stages=1)
        return y
