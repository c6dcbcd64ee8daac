# task: convtranspose_tanh
# tanh as 2 sigmoid(2x) - 1.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sub_tanh(x_ptr, b_ptr, n, HW, C, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(x_ptr + i, mask=m) - tl.load(b_ptr + (i // HW) % C, mask=m)
    tl.store(x_ptr + i, 2.0 * tl.sigmoid(2.0 * v) - 1.0, mask=m)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels, 3, stride=2, padding=1, output_padding=1)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        y = self.conv_transpose(x)
        n = y.numel()
        sub_tanh[(triton.cdiv(n, 512),)](y, self.bias, n, y.shape[2] * y.shape[3], y.shape[1], BLOCK=512)
        return y
