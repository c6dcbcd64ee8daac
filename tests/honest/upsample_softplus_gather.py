# task: upsample_softplus
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def up(x, w, b, scale, y, C, O, H, W, total, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < total
    OW, OH = 2 * W, 2 * H
    ox = o % OW
    oy = (o // OW) % OH
    oc = (o // (OW * OH)) % O
    n = o // (OW * OH * O)
    acc = tl.load(b + oc, mask=m, other=0.0)
    for c in range(C):
        for ky in tl.static_range(4):
            for kx in tl.static_range(4):
                ty, tx = oy + 1 - ky, ox + 1 - kx
                iy, ix = ty // 2, tx // 2
                ok = m & (ty >= 0) & (tx >= 0) & (ty % 2 == 0) & (tx % 2 == 0) & (iy < H) & (ix < W)
                v = tl.load(x + ((n * C + c) * H + iy) * W + ix, mask=ok, other=0.0)
                acc += v * tl.load(w + ((c * O + oc) * 4 + ky) * 4 + kx, mask=ok, other=0.0)
    sp = tl.where(acc > 20.0, acc, tl.log(1.0 + tl.exp(tl.minimum(acc, 20.0))))
    tl.store(y + o, sp * tl.load(scale), mask=m)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, out_channels, 4, stride=2, padding=1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        n, c, h, w = x.shape
        o = self.up.weight.shape[1]
        y = torch.empty(n, o, 2 * h, 2 * w, device=x.device, dtype=x.dtype)
        up[(triton.cdiv(y.numel(), 128),)](x, self.up.weight, self.up.bias, self.scale, y, c, o, h, w, y.numel(), BLOCK=128)
        return y
