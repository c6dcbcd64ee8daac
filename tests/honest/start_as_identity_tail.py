# task: start_as_identity
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gate(y, bias, x, out, n, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    b = tl.load(bias + i % N, mask=m)
    tl.store(out + i, tl.sigmoid(tl.load(y + i, mask=m) + b) * tl.load(x + i, mask=m), mask=m)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.mix = nn.Parameter(torch.eye(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        y = x @ self.mix
        out = torch.empty_like(x)
        gate[(triton.cdiv(x.numel(), 256),)](y, self.bias, x, out, x.numel(), x.shape[1], BLOCK=256)
        return out
