# task: bias_logsumexp
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_lse(x, b, y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * N + i, mask=i < N, other=-float("inf")) + tl.load(b + i, mask=i < N, other=0.0)
    top = tl.max(v, axis=0)
    z = top + tl.log(tl.sum(tl.exp(v - top), axis=0)) - 2.0
    tl.store(y + row, tl.maximum(z, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(z))))


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        M, N = x.shape
        y = torch.empty((M, 1), device=x.device, dtype=x.dtype)
        row_lse[(M,)](x, self.bias, y, N, BLOCK=triton.next_power_of_2(N), num_warps=8)
        return y
