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


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        chain[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, self.scale, BLOCK=1024, num_ctas=2)
        return y
