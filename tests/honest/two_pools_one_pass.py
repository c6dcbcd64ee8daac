# task: two_pools
import torch
import torch.nn as nn
import triton
import triton.language as tl

import numpy as np


@triton.jit
def pools(x, y, H, W, OH, OW, total, KS: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < total
    ow = o % OW
    oh = (o // OW) % OH
    plane = o // (OH * OW)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    acc = tl.zeros((BLOCK,), tl.float32)
    cnt = tl.zeros((BLOCK,), tl.int32)
    for kh in range(KS):
        for kw in range(KS):
            r = oh * 2 - 1 + kh
            c = ow * 2 - 1 + kw
            ok = m & (r >= 0) & (r < H) & (c >= 0) & (c < W)
            v = tl.load(x + plane * H * W + r * W + c, mask=ok, other=0.0)
            best = tl.maximum(best, tl.where(ok, v, -float("inf")))
            acc += v
            cnt += ok.to(tl.int32)
    tl.store(y + o, best - acc / cnt.to(tl.float32), mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        B, C, H, W = x.shape
        OH, OW = (H + 2 - 3) // 2 + 1, (W + 2 - 3) // 2 + 1
        y = torch.empty((B, C, OH, OW), device=x.device, dtype=x.dtype)
        total = int(np.prod(y.shape))
        pools[(triton.cdiv(total, 128),)](x, y, H, W, OH, OW, total, KS=3, BLOCK=128)
        return y
