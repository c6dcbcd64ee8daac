# habit: Sorts ids by torch, and adds up each segment between bounds that are searched for.
# task: scatter_counts
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def segment_sum(values_ptr, bounds_ptr, out_ptr, BLOCK: tl.constexpr):
    k = tl.program_id(0)
    lo = tl.load(bounds_ptr + k)
    hi = tl.load(bounds_ptr + k + 1)
    acc = tl.zeros([BLOCK], tl.float32)
    for i in range(lo, hi, BLOCK):
        o = i + tl.arange(0, BLOCK)
        acc += tl.load(values_ptr + o, mask=o < hi, other=0.0)
    tl.store(out_ptr + k, tl.sum(acc))


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values, ids):
        sorted_ids, order = torch.sort(ids, stable=True)
        bounds = torch.searchsorted(sorted_ids, torch.arange(self.bins + 1, device=ids.device))
        out = values.new_empty(self.bins)
        segment_sum[(self.bins,)](values[order], bounds, out, BLOCK=128)
        return out
