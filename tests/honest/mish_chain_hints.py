# task: mish_chain
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def mish_chain(x, y, n, scale, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK % 128 == 0, "bad block")
    tl.assume(n > 0)
    pid = tl.program_id(0)
    i = tl.max_contiguous(tl.multiple_of(pid * BLOCK + tl.arange(0, BLOCK), BLOCK), BLOCK)
    tl.device_assert(pid >= 0, "negative")
    v = tl.load(x + i, mask=i < n, other=0.0, eviction_policy="evict_first", volatile=False)
    tl.debug_barrier()
    t = v * scale
    e = tl.math.exp2(tl.minimum(t, 20.0) * 1.4426950408889634)
    m = tl.fma(e, e, 2.0 * e)
    t = tl.where(t > 20.0, t, tl.fdiv(t * m, m + 2.0))
    tl.store(y + i, tl.clamp(t + v, -1.0, 3.0), mask=i < n, cache_modifier=".cs")


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        mish_chain[(triton.cdiv(n, 256),)](x, y, n, self.scale, BLOCK=256)
        return y
