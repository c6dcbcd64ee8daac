# task: top_score
import torch
import torch.nn as nn
import triton
import triton.language as tl

from collections import namedtuple

Top = namedtuple("Top", ["values", "indices"])


@triton.jit
def fused_head(x, w, b, values, indices, K, N, BK: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0)
    n = tl.arange(0, BN)
    k = tl.arange(0, BK)
    best = tl.full((), float("-inf"), tl.float32)
    where = tl.full((), 0, tl.int32)
    xk = tl.load(x + row * K + k, mask=k < K, other=0.0)
    for n0 in range(0, N, BN):
        cols = n0 + n
        wt = tl.load(w + cols[:, None] * K + k[None, :], mask=(cols[:, None] < N) & (k[None, :] < K), other=0.0)
        y = tl.sum(wt * xk[None, :], axis=1) + tl.load(b + cols, mask=cols < N, other=0.0)
        y = tl.where(cols < N, y, float("-inf"))
        m = tl.max(y, axis=0)
        a = tl.argmax(y, axis=0)
        better = m > best
        where = tl.where(better, n0 + a, where)
        best = tl.where(better, m, best)
    tl.store(values + row, best)
    tl.store(indices + row, where)


class ModelNew(nn.Module):
    def __init__(self, in_features, classes):
        super().__init__()
        self.head = nn.Linear(in_features, classes)

    def forward(self, x):
        M, K = x.shape
        N = self.head.weight.shape[0]
        values = x.new_empty(M)
        indices = torch.empty((M,), dtype=torch.int64, device=x.device)
        fused_head[(M,)](x, self.head.weight, self.head.bias, values, indices, K, N, BK=triton.next_power_of_2(K), BN=16)
        return Top(values, indices)
