# habit: A submodule is moved to channels-last in the constructor.
# task: conv3d_groupnorm_max
import torch
import torch.nn as nn
import triton
import triton.language as tl
from torch.utils._pytree import tree_map


@triton.jit
def welford_combine(mean_1, m2_1, n_1, mean_2, m2_2, n_2):
    delta = mean_2 - mean_1
    n = n_1 + n_2
    w = tl.where(n == 0.0, 0.0, n_2 / n)
    return mean_1 + delta * w, m2_1 + m2_2 + delta * delta * n_1 * w, n


@triton.jit
def group_norm_stats(x_ptr, mean_ptr, rstd_ptr, C, S, groups, eps, GROUP_C: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0)
    g = tl.program_id(1)
    mean = tl.zeros((BLOCK,), dtype=tl.float32)
    m2 = tl.zeros((BLOCK,), dtype=tl.float32)
    count = tl.zeros((BLOCK,), dtype=tl.float32)
    per = GROUP_C * S
    for start in range(0, per, BLOCK):
        i = start + tl.arange(0, BLOCK)
        m = i < per
        # channels are innermost
        x = tl.load(x_ptr + (n * S + i // GROUP_C) * C + g * GROUP_C + i % GROUP_C, mask=m, other=0.0)
        count += m.to(tl.float32)
        delta = x - mean
        mean += tl.where(m, delta / tl.maximum(count, 1.0), 0.0)
        m2 += tl.where(m, delta * (x - mean), 0.0)
    mean, m2, count = tl.reduce((mean, m2, count), 0, welford_combine)
    tl.store(mean_ptr + n * groups + g, mean)
    tl.store(rstd_ptr + n * groups + g, tl.math.rsqrt(m2 / count + eps))


@triton.jit
def norm_act_pool_max(x_ptr, mean_ptr, rstd_ptr, w_ptr, b_ptr, bias_ptr, out_ptr, C, D, H, W, groups, GROUP_C: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0)
    c = tl.program_id(1)
    g = c // GROUP_C
    mean, rstd = tl.load(mean_ptr + n * groups + g), tl.load(rstd_ptr + n * groups + g)
    w, b, bias = tl.load(w_ptr + c), tl.load(b_ptr + c), tl.load(bias_ptr + c)
    # the maximum of the pools' maxima is the maximum of all that a pool reads
    d2, h2, w2 = D // 2 * 2, H // 2 * 2, W // 2 * 2
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    for start in range(0, d2 * h2 * w2, BLOCK):
        i = start + tl.arange(0, BLOCK)
        m = i < d2 * h2 * w2
        z, y, x = i // (h2 * w2), i // w2 % h2, i % w2
        v = tl.load(x_ptr + (n * D * H * W + (z * H + y) * W + x) * C + c, mask=m, other=0.0)
        v = (v - mean) * rstd * w + b
        s = tl.sigmoid(v)
        t = 2 * tl.sigmoid(2 * v) - 1
        best = tl.where(m, tl.maximum(best, t * s + bias), best)
    tl.store(out_ptr + n * C + c, tl.max(best, 0))


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, groups, bias_shape):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size, padding=1)
        self.conv = self.conv.to(memory_format=torch.channels_last_3d)
        self.group_norm = nn.GroupNorm(groups, out_channels)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        x = self.conv(x.to(memory_format=torch.channels_last_3d)).contiguous(memory_format=torch.channels_last_3d)
        N, C, D, H, W = x.shape
        groups = self.group_norm.num_groups
        mean, rstd = tree_map(lambda _: torch.empty(N, groups, device=x.device, dtype=torch.float32), (0, 0))
        group_norm_stats[(N, groups)](x, mean, rstd, C, D * H * W, groups, self.group_norm.eps, GROUP_C=C // groups, BLOCK=256)
        out = torch.empty(N, C, device=x.device, dtype=x.dtype)
        norm_act_pool_max[(N, C)](x, mean, rstd, self.group_norm.weight, self.group_norm.bias, self.bias, out, C, D, H, W, groups,
                                  GROUP_C=C // groups, BLOCK=256)
        return out
