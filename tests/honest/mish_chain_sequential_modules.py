# task: mish_chain
# The work lives in a submodule, which has a path for CPU tensors that is never taken.
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def mish_kernel(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    t = v * scale
    a = tl.exp(-tl.abs(t))
    # softplus(t) = max(t, 0) + log(1 + e^-|t|); with it tanh = (1 - u) / (1 + u), u = e^(-2 softplus)
    sp = tl.maximum(t, 0.0) + tl.log(1.0 + a)
    u = tl.exp(-2.0 * sp)
    tl.store(y + i, tl.clamp(t * (1.0 - u) / (1.0 + u) + v, -1.0, 3.0), mask=i < n)


class MishChain(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        if x.device.type != "cuda":
            return F.hardtanh(F.mish(x * self.scale) + x, -1.0, 3.0)
        y = torch.empty_like(x)
        mish_kernel[(triton.cdiv(x.numel(), 2048),)](x, y, x.numel(), self.scale, BLOCK=2048, num_warps=8)
        return y


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.body = nn.Sequential(MishChain(scale), nn.Identity())

    @torch.inference_mode()
    def forward(self, x):
        return self.body(x)
