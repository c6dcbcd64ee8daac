# task: linear_gelu
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def gelu_inplace(ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(ptr + i, mask=i < n)
    tl.store(ptr + i, v * 0.5 * (1 + tl.erf(v / 1.4142135623730951)), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        y = F.linear(x, self.linear.weight, self.linear.bias)
        gelu_inplace[(triton.cdiv(y.numel(), 1024),)](y, y.numel(), BLOCK=1024)
        return y
