# task: mish_chain
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mish(v):
    # tanh(softplus(v)) = ((1 + e^v)^2 - 1) / ((1 + e^v)^2 + 1) = n / (n + 2), n = e^v (e^v + 2)
    e = tl.exp(tl.minimum(v, 20.0))
    n = e * (e + 2.0)
    return tl.where(v > 20.0, v, v * n / (n + 2.0))


@triton.jit
def chain(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.minimum(tl.maximum(mish(v * scale) + v, -1.0), 3.0), mask=i < n)


lib = torch.library.Library("mishlib", "DEF")
lib.define("chain(Tensor x, float scale) -> Tensor")

@torch.library.impl(lib, "chain", "CUDA")
def _chain(x, scale):
    y = torch.empty_like(x)
    n = x.numel()
    chain[(triton.cdiv(n, 1024),)](x, y, n, scale, BLOCK=1024)
    return y

@torch.library.register_fake("mishlib::chain")
def _(x, scale):
    return torch.empty_like(x)

class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.ops.mishlib.chain(x, self.scale)
