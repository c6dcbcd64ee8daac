# task: conv_bn_relu
# Both modules stay with the library; the batch norm is in eval mode, as the reference is.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.maximum(tl.load(y_ptr + i, mask=i < n), 0.0), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        y = self.bn(self.conv(x))
        relu_kernel[(triton.cdiv(y.numel(), 256),)](y, y.numel(), BLOCK=256)
        return y
