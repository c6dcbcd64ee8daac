# task: mish_chain
import torch
import torch.nn as nn
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def mish_chain(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    t = v * scale
    softplus = tl.maximum(t, 0.0) + libdevice.log1p(libdevice.exp(-libdevice.abs(t)))
    t = libdevice.fma(t, libdevice.tanh(softplus), v)
    tl.store(y + i, tl.minimum(tl.maximum(t, -1.0), 3.0), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        mish_chain[(triton.cdiv(n, 256),)](x, y, n, self.scale, BLOCK=256)
        return y
