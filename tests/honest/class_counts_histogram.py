# task: class_counts
# Each program counts its ids by tl.histogram and adds the counts up.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def count(ids, out, n, K, BLOCK: tl.constexpr, BINS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.histogram(tl.load(ids + i, mask=i < n, other=0).to(tl.int32), BINS, mask=i < n)
    k = tl.arange(0, BINS)
    tl.atomic_add(out + k, found.to(tl.float32), mask=(k < K) & (found > 0))


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, ids):
        out = torch.zeros(self.bins, device=ids.device)
        n = ids.numel()
        count[(triton.cdiv(n, 512),)](ids, out, n, self.bins, BLOCK=512, BINS=triton.next_power_of_2(self.bins))
        return out
