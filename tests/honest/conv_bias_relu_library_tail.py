# task: conv_bias_relu
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def bias_relu(z, b, n, C, HW, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(z + i, mask=i < n) + tl.load(b + i // HW % C, mask=i < n)
    tl.store(z + i, tl.maximum(v, 0), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)

    def forward(self, x):
        z = F.conv2d(x, self.conv.weight, None, padding=self.conv.padding)
        n, (_, C, H, W) = z.numel(), z.shape
        bias_relu[triton.cdiv(n, 256),](z, self.conv.bias, n, C, H * W, BLOCK=256)
        return z
