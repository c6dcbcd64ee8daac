# task: global_pool_head
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def channel_stats(x, mean, rstd, N, C, HW, eps, BLOCK: tl.constexpr):
    c = tl.program_id(0)
    count = 0
    mu = 0.0
    m2 = 0.0
    for n in range(N):
        for s in range(0, HW, BLOCK):
            i = s + tl.arange(0, BLOCK)
            ok = i < HW
            v = tl.load(x + (n * C + c) * HW + i, mask=ok, other=0.0)
            k = tl.minimum(HW - s, BLOCK)
            bm = tl.sum(v, 0) / k
            d = tl.where(ok, v - bm, 0.0)
            b2 = tl.sum(d * d, 0)
            delta = bm - mu
            new = count + k
            mu += delta * k / new
            m2 += b2 + delta * delta * count * k / new
            count = new
    tl.store(mean + c, mu)
    tl.store(rstd + c, tl.rsqrt(m2 / count + eps))


@triton.jit
def apply_pool(x, mean, rstd, g, b, y, C, HW, BLOCK: tl.constexpr):
    nc = tl.program_id(0)
    c = nc % C
    sc = tl.load(rstd + c) * tl.load(g + c)
    sh = tl.load(b + c) - tl.load(mean + c) * sc
    acc = tl.zeros((BLOCK,), tl.float32)
    for s in range(0, HW, BLOCK):
        i = s + tl.arange(0, BLOCK)
        v = tl.load(x + nc * HW + i, mask=i < HW, other=0.0) * sc + sh
        acc += tl.where(i < HW, tl.maximum(v, 0.0), 0.0)
    tl.store(y + nc, tl.sum(acc, 0) / HW)


class ModelNew(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        N, C, H, W = x.shape
        HW = H * W
        mean = torch.empty(C, device=x.device, dtype=torch.float32)
        rstd = torch.empty_like(mean)
        blk = min(1024, triton.next_power_of_2(HW))
        if self.training:
            channel_stats[(C,)](x, mean, rstd, N, C, HW, self.bn.eps, BLOCK=blk)
        else:
            mean, rstd = self.bn.running_mean, torch.rsqrt(self.bn.running_var + self.bn.eps)
        pooled = torch.empty((N, C), device=x.device, dtype=x.dtype)
        apply_pool[(N * C,)](x, mean, rstd, self.bn.weight, self.bn.bias, pooled, C, HW, BLOCK=blk)
        return self.fc(pooled)
