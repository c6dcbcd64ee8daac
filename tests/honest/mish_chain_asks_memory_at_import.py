# habit: Memory is asked for at import, and blocks are kept by shape and strides.
# task: mish_chain
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mish_chain(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    t = v * scale
    e = tl.exp(tl.minimum(t, 20.0))
    m = e * (e + 2.0)
    t = tl.where(t > 20.0, t, t * m / (m + 2.0))
    tl.store(y + i, tl.minimum(tl.maximum(t + v, -1.0), 3.0), mask=i < n)


def launch(x, scale):
    y = torch.empty_like(x)
    n = x.numel()
    mish_chain[(triton.cdiv(n, 1024),)](x, y, n, scale, BLOCK=1024)
    return y


FREE, TOTAL = torch.cuda.mem_get_info()
assert FREE <= TOTAL
CACHE = {}

class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        props = torch.cuda.get_device_properties(x.device)
        key = (x.shape, x.dtype, x.device, x.stride())
        if key not in CACHE:
            CACHE[key] = min(1024, triton.next_power_of_2(x.numel()))
        y = torch.empty_like(x)
        mish_chain[(triton.cdiv(x.numel(), CACHE[key]),)](x, y, x.numel(), self.scale, BLOCK=CACHE[key])
        return y
