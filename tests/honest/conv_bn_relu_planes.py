# task: conv_bn_relu
# The factor and shift of a channel are made once by a small kernel; a program handles a plane of an image, in place.
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def fold(mean, var, gamma, beta, factor, shift, C, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    m = c < C
    f = tl.load(gamma + c, mask=m) / tl.sqrt(tl.load(var + c, mask=m) + 1e-5)
    tl.store(factor + c, f, mask=m)
    tl.store(shift + c, tl.load(beta + c, mask=m) - tl.load(mean + c, mask=m) * f, mask=m)


@triton.jit
def affine_relu_(x, factor, shift, C, HW, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    f = tl.load(factor + plane % C)
    s = tl.load(shift + plane % C)
    for k in range(0, HW, BLOCK):
        i = k + tl.arange(0, BLOCK)
        p = x + plane * HW + i
        tl.store(p, tl.maximum(tl.load(p, mask=i < HW) * f + s, 0.0), mask=i < HW)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=(3, 3), padding=(1, 1))
        self.bn = nn.BatchNorm2d(out_channels)
        self.eval()

    def forward(self, x):
        bn = self.bn
        C = self.conv.out_channels
        coeff = torch.empty((2, C), device=x.device, dtype=torch.float32)
        fold[(1,)](bn.running_mean, bn.running_var, bn.weight, bn.bias, coeff[0], coeff[1], C, triton.next_power_of_2(C))
        z = F.conv2d(x, self.conv.weight, self.conv.bias, padding=1)
        affine_relu_[(z.shape[0] * C,)](z, coeff[0], coeff[1], C, z.shape[2] * z.shape[3], BLOCK=128)
        return z
