# task: depthwise_separable
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

@triton.jit
def bias_relu6(x, b, n, C, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(x + i, mask=m) + tl.load(b + i % C, mask=m)
    tl.store(x + i, tl.clamp(v, 0.0, 6.0), mask=m)


class ModelNew(nn.Module):
    def __init__(self, channels, out_channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.pointwise = nn.Conv2d(channels, out_channels, 1)

    def forward(self, x):
        x = x.to(memory_format=torch.channels_last)
        y = F.conv2d(self.depthwise(x), self.pointwise.weight)
        y = y.contiguous(memory_format=torch.channels_last)
        bias_relu6[(triton.cdiv(y.numel(), 512),)](y, self.pointwise.bias, y.numel(), y.shape[1], BLOCK=512)
        return y.contiguous()
