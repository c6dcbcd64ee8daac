# task: conv_bn_relu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bn_relu(x, mean, var, gamma, beta, y, n, C, HW, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    c = (i // HW) % C
    v = (tl.load(x + i, mask=m) - tl.load(mean + c, mask=m)) * tl.rsqrt(tl.load(var + c, mask=m) + eps)
    v = v * tl.load(gamma + c, mask=m) + tl.load(beta + c, mask=m)
    tl.store(y + i, tl.maximum(v, 0.0), mask=m)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(out_channels)
        self.eval()

    def forward(self, x):
        z = self.conv(x)
        B, C, H, W = z.shape
        y = torch.empty_like(z)
        bn = self.bn
        bn_relu[(triton.cdiv(z.numel(), 1024),)](
            z, bn.running_mean, bn.running_var, bn.weight, bn.bias, y, z.numel(), C, H * W, bn.eps, BLOCK=1024
        )
        return y
