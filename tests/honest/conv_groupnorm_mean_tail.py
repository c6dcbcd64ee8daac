# task: conv_groupnorm_mean
# The mean of a normalised plane needs only the plane's mean and the group's statistics.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def group_means(z, gamma, beta, y, C, HW, PER: tl.constexpr, eps, BLOCK: tl.constexpr):
    n, g = tl.program_id(0), tl.program_id(1)
    base = z + (n * C + g * PER).to(tl.int64) * HW
    size = PER * HW
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, size, BLOCK):
        i = k + tl.arange(0, BLOCK)
        acc += tl.load(base + i, mask=i < size, other=0.0)
    mean = tl.sum(acc) / size
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, size, BLOCK):
        i = k + tl.arange(0, BLOCK)
        d = tl.where(i < size, tl.load(base + i, mask=i < size, other=0.0) - mean, 0.0)
        acc += d * d
    rstd = tl.rsqrt(tl.sum(acc) / size + eps)
    for c in range(PER):
        part = tl.zeros((BLOCK,), tl.float32)
        for k in range(0, HW, BLOCK):
            i = k + tl.arange(0, BLOCK)
            part += tl.where(i < HW, tl.load(base + c * HW + i, mask=i < HW, other=0.0) - mean, 0.0)
        ch = g * PER + c
        tl.store(y + n * C + ch, tl.sum(part) / HW * rstd * tl.load(gamma + ch) + tl.load(beta + ch))


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, num_groups):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3)
        self.group_norm = nn.GroupNorm(num_groups, out_channels)

    def forward(self, x):
        z = self.conv(x).contiguous()
        B, C, H, W = z.shape
        gn = self.group_norm
        y = z.new_empty((B, C))
        group_means[(B, gn.num_groups)](z, gn.weight, gn.bias, y, C, H * W, C // gn.num_groups, gn.eps, BLOCK=256)
        return y
