# task: mish_chain
# No masks: the last tile is moved back to end where the tensor does, so two programs store the same numbers to some places.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def chain(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.minimum(tl.program_id(0) * BLOCK, n - BLOCK) + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    z = v * scale
    e = tl.exp(tl.minimum(z, 20.0))
    m = e * (e + 2.0)
    tl.store(y + i, tl.clamp(tl.where(z > 20.0, z, z * m / (m + 2.0)) + v, -1.0, 3.0))


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y, n = torch.empty_like(x), x.numel()
        block = min(1024, 1 << (n.bit_length() - 1))
        chain[(triton.cdiv(n, block),)](x, y, n, self.scale, BLOCK=block)
        return y
