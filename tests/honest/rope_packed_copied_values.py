# habit: Parts of a projection are copied; two are rotated in place, and the third is returned as it is.
# task: rope_packed
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rotate(x, cos, sin, heads, D: tl.constexpr, HALF: tl.constexpr):
    t, h = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, HALF)
    m = c < D // 2
    p = x + (t * heads + h).to(tl.int64) * D
    a = tl.load(p + c, mask=m, other=0.0)
    b = tl.load(p + D // 2 + c, mask=m, other=0.0)
    co = tl.load(cos + t * (D // 2) + c, mask=m, other=0.0)
    si = tl.load(sin + t * (D // 2) + c, mask=m, other=0.0)
    tl.store(p + c, a * co - b * si, mask=m)
    tl.store(p + D // 2 + c, b * co + a * si, mask=m)


class ModelNew(nn.Module):
    def __init__(self, H, KV, D):
        super().__init__()
        self.sizes, self.D = (H * D, KV * D, KV * D), D

    def forward(self, qkv, cos, sin):
        q, k, v = (p.contiguous().view(p.shape[0], -1, self.D) for p in torch.split(qkv, self.sizes, dim=-1))
        half = triton.next_power_of_2(self.D // 2)
        for p in (q, k):
            rotate[(p.shape[0], p.shape[1])](p, cos, sin, p.shape[1], D=self.D, HALF=half)
        return q, k, v.clone()
