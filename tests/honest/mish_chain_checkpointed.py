# habit: torch.utils.checkpoint around an autograd function, in training alone.
# task: mish_chain
import torch
import torch.nn as nn
import triton
import triton.language as tl
from torch.utils.checkpoint import checkpoint


@triton.jit
def kernel(x_ptr, y_ptr, n, scale, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(x_ptr + o, mask=m, other=0.0)
    t = x * scale
    e = tl.exp(tl.minimum(t, 15.0))
    w = e * (e + 2.0)
    tl.store(y_ptr + o, tl.clamp(tl.where(t > 15.0, t, t * w / (w + 2.0)) + x, -1.0, 3.0), mask=m)


class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), scale, BLOCK=1024)
        return y

    @staticmethod
    def backward(ctx, dy):
        raise NotImplementedError


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        if self.training:
            return checkpoint(Fn.apply, x, self.scale, use_reentrant=False)
        return Fn.apply(x, self.scale)
