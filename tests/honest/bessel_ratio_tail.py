# habit: What Triton has no function for is left to torch, between a kernel before and one after.
# task: bessel_ratio
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softplus(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < count
    x = tl.load(x_ptr + i, mask=m, other=0.0)
    y = tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))
    small = tl.exp(tl.minimum(x, 0.0))
    tl.store(out_ptr + i, tl.where(x < -8.0, small - 0.5 * small * small, y), mask=m)


@triton.jit
def ratio(a_ptr, b_ptr, gain_ptr, out_ptr, count, features, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < count
    a = tl.load(a_ptr + i, mask=m, other=0.0)
    b = tl.load(b_ptr + i, mask=m, other=1.0)
    tl.store(out_ptr + i, a / b * tl.load(gain_ptr + i % features, mask=m, other=0.0), mask=m)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x):
        kappa, out = torch.empty_like(x), torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 256),)
        softplus[grid](x, kappa, x.numel(), BLOCK=256)
        ratio[grid](torch.special.i1e(kappa), torch.special.i0e(kappa), self.gain, out, x.numel(), x.shape[1], BLOCK=256)
        return out
