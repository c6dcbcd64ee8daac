# task: conv1d_glu_pool
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def glu_avgpool(z, y, C, L, OL, total, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < total
    t = o % OL
    c = (o // OL) % C
    b = o // (OL * C)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for k in tl.static_range(3):
        p = t * 2 - 1 + k
        ok = m & (p >= 0) & (p < L)
        a = tl.load(z + (b * 2 * C + c) * L + p, mask=ok, other=0.0)
        g = tl.load(z + (b * 2 * C + C + c) * L + p, mask=ok, other=0.0)
        acc += tl.where(ok, a * tl.sigmoid(g), 0.0)
    tl.store(y + o, acc / 3.0, mask=m)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, 2 * out_channels, 5, stride=2, padding=2, dilation=1)

    def forward(self, x):
        z = self.conv(x).contiguous()
        B, C2, L = z.shape
        C = C2 // 2
        OL = (L + 2 * 1 - 3) // 2 + 1
        y = torch.empty((B, C, OL), dtype=x.dtype, device=x.device)
        total = y.numel()
        glu_avgpool[(triton.cdiv(total, 128),)](z, y, C, L, OL, total, 128)
        return y
