# task: scatter_counts
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def scatter(v, ids, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    k = tl.load(ids + i, mask=m, other=0)
    tl.atomic_add(out + k, tl.load(v + i, mask=m, other=0.0), mask=m)


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values, ids):
        out = torch.zeros(self.bins, dtype=torch.float32, device=values.device)
        scatter[(triton.cdiv(values.numel(), 256),)](values, ids, out, values.numel(), BLOCK=256)
        return out.to(values.dtype)
