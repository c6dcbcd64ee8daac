# habit: A class of arguments is registered with torch, so that others can look into it.
# task: mish_chain
import dataclasses

import torch
import torch.nn as nn
import torch.utils._pytree as pytree
import triton
import triton.language as tl


@dataclasses.dataclass
class Arguments:
    x: torch.Tensor
    scale: float


pytree.register_pytree_node(Arguments, lambda a: ([a.x], a.scale), lambda leaves, scale: Arguments(leaves[0], scale))


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


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        given = Arguments(x, self.scale)
        return launch(given.x, given.scale)
