# task: combine_experts
# The K rows of a token as one tile, reduced with the weights by a custom combine.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def combine(rows, index, weight, out, D, K, PK: tl.constexpr, BLOCK: tl.constexpr):
    t = tl.program_id(0)
    k = tl.arange(0, PK)
    r = tl.load(index + t * K + k, mask=k < K, other=0)
    w = tl.load(weight + t * K + k, mask=k < K, other=0.0)
    for start in range(0, D, BLOCK):
        d = start + tl.arange(0, BLOCK)
        v = tl.load(rows + r[:, None] * D + d[None, :], mask=(k[:, None] < K) & (d[None, :] < D), other=0.0)
        tl.store(out + t * D + d, tl.reduce(v * w[:, None], 0, plus), mask=d < D)


class ModelNew(nn.Module):
    def forward(self, rows, index, weight):
        T, K = index.shape
        out = rows.new_empty((T, rows.shape[1]))
        combine[(T,)](rows, index, weight, out, rows.shape[1], K, PK=triton.next_power_of_2(K), BLOCK=16)
        return out
