# habit: Two tiles joined by tl.cat in any order, together with their places.
# task: mish_chain
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mish(t):
    e = tl.exp(tl.minimum(t, 20.0))
    w = e * (e + 2.0)
    return tl.where(t > 20.0, t, t * w / (w + 2.0))


@triton.jit
def kernel(x_ptr, y_ptr, n, scale, HALF: tl.constexpr):
    o = tl.program_id(0) * 2 * HALF + tl.arange(0, HALF)
    a = tl.load(x_ptr + o, mask=o < n, other=0.0)
    b = tl.load(x_ptr + o + HALF, mask=o + HALF < n, other=0.0)
    both = tl.cat(a, b, can_reorder=True)
    places = tl.cat(o, o + HALF, can_reorder=True)
    t = tl.view(both, (2, HALF))
    t = mish(t * scale).ravel()
    v = tl.expand_dims(t, 0).reshape(2 * HALF) + both
    tl.store(y_ptr + places, tl.clamp(v, -1.0, 3.0), mask=places < n)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), self.scale, HALF=512)
        return y
