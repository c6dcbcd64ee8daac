# task: depthwise_separable
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def depthwise3x3(x, w, y, C, H, W, total, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < total
    col = o % W
    row = (o // W) % H
    c = (o // (W * H)) % C
    plane = o // (W * H)
    acc = tl.zeros((BLOCK,), tl.float32)
    for dy in tl.static_range(3):
        for dx in tl.static_range(3):
            r = row + dy - 1
            q = col + dx - 1
            ok = m & (r >= 0) & (r < H) & (q >= 0) & (q < W)
            acc += tl.load(x + plane * H * W + r * W + q, mask=ok, other=0.0) * tl.load(w + c * 9 + dy * 3 + dx, mask=m, other=0.0)
    tl.store(y + o, acc, mask=m)


@triton.jit
def pointwise_relu6(x, w, b, y, C, O, HW, BC: tl.constexpr, BO: tl.constexpr, BP: tl.constexpr):
    n = tl.program_id(2)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    acc = tl.zeros((BO, BP), dtype=tl.float32)
    for c0 in range(0, tl.cdiv(C, BC)):
        c = c0 * BC + tl.arange(0, BC)
        wt = tl.load(w + o[:, None] * C + c[None, :], mask=(o[:, None] < O) & (c[None, :] < C), other=0.0)
        xt = tl.load(x + (n * C + c[:, None]) * HW + p[None, :], mask=(c[:, None] < C) & (p[None, :] < HW), other=0.0)
        acc += tl.dot(wt, xt, input_precision="ieee")
    acc += tl.load(b + o, mask=o < O, other=0.0)[:, None]
    acc = tl.minimum(tl.maximum(acc, 0.0), 6.0)
    tl.store(y + (n * O + o[:, None]) * HW + p[None, :], acc, mask=(o[:, None] < O) & (p[None, :] < HW))


class ModelNew(nn.Module):
    def __init__(self, channels, out_channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.pointwise = nn.Conv2d(channels, out_channels, 1)

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        mid = torch.empty_like(x)
        total = x.numel()
        depthwise3x3[lambda META: (triton.cdiv(total, META["BLOCK"]),)](x, self.depthwise.weight, mid, c, h, w, total, BLOCK=256)
        o = self.pointwise.out_channels
        y = torch.empty(n, o, h, w, device=x.device, dtype=x.dtype)
        pointwise_relu6[(triton.cdiv(h * w, 32), triton.cdiv(o, 16), n)](mid, self.pointwise.weight, self.pointwise.bias, y, c, o, h * w, BC=16, BO=16, BP=32)
        return y
