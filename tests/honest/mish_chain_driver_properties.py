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


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        props = triton.runtime.driver.active.utils.get_device_properties(torch.cuda.current_device())
        sms = props["multiprocessor_count"]
        target = triton.runtime.driver.active.get_current_target()
        assert target.backend == "cuda" and target.arch >= 80
        cap = torch.cuda.get_device_capability(x.device)
        block = 512 if cap[0] >= 9 else 256
        mish_chain[(triton.cdiv(n, block),)](x, y, n, self.scale, BLOCK=block, num_warps=4)
        return y
