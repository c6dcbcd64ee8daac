# habit: triton.constexpr_function, and a name and metadata for launches from functions.
# task: mish_chain
import torch
import torch.nn as nn
import triton
import triton.language as tl

LOW: tl.constexpr = tl.constexpr(-1.0)
HIGH: tl.constexpr = tl.constexpr(3.0)
_LIMIT = tl.constexpr(20.0)


@triton.constexpr_function
def log2(n):
    return n.bit_length() - 1


def _name(specialization):
    return f"mish_{specialization.constants.get('BLOCK', 0)}"


def _metadata(grid, kernel, args):
    return {"name": kernel.name, "bytes": 8 * args["n"]}


@triton.jit(repr=_name, launch_metadata=_metadata)
def kernel(x_ptr, y_ptr, n, scale, BLOCK: tl.constexpr):
    SHIFT: tl.constexpr = log2(BLOCK)
    tl.static_assert(1 << SHIFT == BLOCK)
    o = (tl.program_id(0) << SHIFT) + tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(x_ptr + o, mask=m, other=0.0)
    t = x * scale
    e = tl.exp(tl.minimum(t, _LIMIT))
    w = e * (e + 2.0)
    tl.store(y_ptr + o, tl.clamp(tl.where(t > _LIMIT, t, t * w / (w + 2.0)) + x, LOW, HIGH), mask=m)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), self.scale, BLOCK=1024)
        return y
