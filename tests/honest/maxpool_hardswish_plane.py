# task: maxpool_hardswish
# Three-dimensional grid; a program takes a strip of one output row; strides are passed.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def hardswish(v):
    return v * tl.clamp(v * (1.0 / 6.0) + 0.5, 0.0, 1.0)


@triton.jit
def pool_strip(x, y, H, W, sxp, sxh, syp, syh, OW, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, BW: tl.constexpr):
    oh, plane = tl.program_id(1), tl.program_id(2)
    ow = tl.program_id(0) * BW + tl.arange(0, BW)
    acc = tl.zeros([BW], tl.float32) - float("inf")
    for a in range(K):
        h = oh * S - P + a
        for b in range(K):
            w = ow * S - P + b
            v = tl.load(x + plane * sxp + h * sxh + w, mask=(h >= 0) & (h < H) & (w >= 0) & (w < W), other=float("-inf"))
            acc = tl.where(v > acc, v, acc)
    tl.store(y + plane * syp + oh * syh + ow, hardswish(acc), mask=ow < OW)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.k, self.s, self.p = 3, 2, 1

    def forward(self, x):
        B, C, H, W = x.shape
        OH = (H + 2 * self.p - self.k) // self.s + 1
        OW = (W + 2 * self.p - self.k) // self.s + 1
        y = x.new_empty(B, C, OH, OW)
        grid = lambda meta: (triton.cdiv(OW, meta["BW"]), OH, B * C)
        pool_strip[grid](x, y, H, W, x.stride(1), x.stride(2), y.stride(1), y.stride(2), OW, K=3, S=2, P=1, BW=16)
        return y
