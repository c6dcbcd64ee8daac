# task: mish_chain
# Numbers its objects for a log, and waits for the GPU unless a graph is captured.
import itertools

import torch
import torch.nn as nn
import triton
import triton.language as tl

_numbers = itertools.count()


@triton.jit
def chain(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    e = tl.exp(tl.minimum(v * scale, 20.0))
    m = e * (e + 2.0)
    m = tl.where(v * scale > 20.0, v * scale, v * scale * m / (m + 2.0))
    tl.store(y + i, tl.minimum(tl.maximum(m + v, -1.0), 3.0), mask=i < n)


class ModelNew(nn.Module):
    made = 0

    def __init__(self, scale):
        super().__init__()
        ModelNew.made += 1
        self.layer_idx = next(_numbers)
        self.scale = scale

    def extra_repr(self):
        return f"layer {self.layer_idx} of {ModelNew.made}"

    def forward(self, x):
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        y = torch.empty_like(x)
        n = x.numel()
        chain[(triton.cdiv(n, 1024),)](x, y, n, self.scale, BLOCK=1024)
        return y
