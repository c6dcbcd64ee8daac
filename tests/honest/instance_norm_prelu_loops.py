# task: instance_norm_prelu
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def instance_norm_prelu(x_ptr, y_ptr, gamma, beta, slope, C, HW, eps: tl.constexpr, BLOCK: tl.constexpr):
    nc = tl.program_id(0)
    c = nc % C
    base = nc * HW
    _sum = tl.zeros([BLOCK], dtype=tl.float32)
    _sq = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, HW, BLOCK):
        i = off + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + base + i, mask=i < HW, other=0.0)
        _sum += v
    mean = tl.sum(_sum, 0) / HW
    for off in range(0, HW, BLOCK):
        i = off + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + base + i, mask=i < HW, other=0.0)
        d = tl.where(i < HW, v - mean, 0.0)
        _sq += d * d
    rstd = 1.0 / tl.sqrt(tl.sum(_sq, 0) / HW + eps)
    g, b, a = tl.load(gamma + c), tl.load(beta + c), tl.load(slope + c)
    for off in range(0, HW, BLOCK):
        i = off + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + base + i, mask=i < HW)
        v = (v - mean) * rstd * g + b
        tl.store(y_ptr + base + i, tl.where(v >= 0, v, v * a), mask=i < HW)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.InstanceNorm2d(channels, affine=True)
        self.act = nn.PReLU(channels)

    def forward(self, x):
        N, C, H, W = x.shape
        y = torch.empty_like(x)
        instance_norm_prelu[(N * C,)](x, y, self.norm.weight, self.norm.bias, self.act.weight, C, H * W, self.norm.eps, BLOCK=min(4096, triton.next_power_of_2(H * W)))
        return y
