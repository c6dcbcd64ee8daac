# task: conv_bn_relu
# The convolution itself in Triton: a program for a row of output pixels and all output channels.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def conv3x3(x, w, b, mean, var, gamma, beta, y, C, O, H, W, BO: tl.constexpr, BW: tl.constexpr):
    n, row = tl.program_id(0) // H, tl.program_id(0) % H
    o, j = tl.arange(0, BO), tl.program_id(1) * BW + tl.arange(0, BW)
    acc = tl.zeros((BO, BW), tl.float32)
    for c in range(C):
        for t in tl.static_range(9):
            r = row + t // 3 - 1
            s = j + t % 3 - 1
            v = tl.load(x + ((n * C + c) * H + r) * W + s, mask=(r >= 0) & (r < H) & (s >= 0) & (s < W), other=0.0)
            acc += tl.load(w + (o * C + c) * 9 + t, mask=o < O, other=0.0)[:, None] * v[None, :]
    acc += tl.load(b + o, mask=o < O, other=0.0)[:, None]
    rstd = tl.rsqrt(tl.load(var + o, mask=o < O, other=1.0) + 1e-5)
    acc = (acc - tl.load(mean + o, mask=o < O, other=0.0)[:, None]) * rstd[:, None]
    acc = acc * tl.load(gamma + o, mask=o < O, other=0.0)[:, None] + tl.load(beta + o, mask=o < O, other=0.0)[:, None]
    out = y + ((n * O + o[:, None]) * H + row) * W + j[None, :]
    tl.store(out, tl.maximum(acc, 0.0), mask=(o[:, None] < O) & (j[None, :] < W))


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(out_channels)
        self.eval()

    def forward(self, x):
        B, C, H, W = x.shape
        conv, bn = self.conv, self.bn
        O = conv.weight.shape[0]
        y = torch.empty(B, O, H, W, device=x.device)
        conv3x3[(B * H, triton.cdiv(W, 16))](
            x, conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.weight, bn.bias, y,
            C, O, H, W, BO=triton.next_power_of_2(O), BW=16,
        )  # fmt: skip
        return y
