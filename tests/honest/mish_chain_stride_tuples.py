# task: mish_chain
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def mish_chain(x, y, shape, strides, scale, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    k = i < shape[1]
    v = tl.load(x + r * strides[0] + i * strides[1], mask=k, other=0.0)
    t = v * scale
    e = tl.exp(tl.minimum(t, 20.0))
    m = e * (e + 2.0)
    t = tl.where(t > 20.0, t, t * m / (m + 2.0))
    tl.store(y + r * strides[0] + i * strides[1], tl.minimum(tl.maximum(t + v, -1.0), 3.0), mask=k)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        M, N = x.shape
        mish_chain[(M,)](x, y, x.shape, x.stride(), self.scale, BLOCK=triton.next_power_of_2(N))
        return y
