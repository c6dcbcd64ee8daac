# habit: The bags are left to torch, by the module that holds the table, and the tail is one kernel.
# task: bag_gate
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bias_gate(y_ptr, bias_ptr, out_ptr, count, dim, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < count
    y = tl.load(y_ptr + i, mask=m, other=0.0) + tl.load(bias_ptr + i % dim, mask=m, other=0.0)
    tl.store(out_ptr + i, y * tl.sigmoid(y), mask=m)


class ModelNew(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, dim, mode="sum")
        self.bias = nn.Parameter(torch.randn(dim) * 0.1)

    def forward(self, indices, offsets, weights):
        y = self.bag(indices, offsets, per_sample_weights=weights)
        out = torch.empty_like(y)
        bias_gate[(triton.cdiv(y.numel(), 256),)](y, self.bias, out, y.numel(), y.shape[1], BLOCK=256)
        return out
