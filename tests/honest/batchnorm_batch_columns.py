# task: batchnorm_batch
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def column_norm(x, gamma, beta, y, M, N, eps, BM: tl.constexpr, BN: tl.constexpr):
    c = tl.program_id(0) * BN + tl.arange(0, BN)
    r = tl.arange(0, BM)
    total = tl.zeros((BN,), tl.float32)
    for s in range(0, M, BM):
        m = ((s + r)[:, None] < M) & (c[None, :] < N)
        total += tl.sum(tl.load(x + (s + r)[:, None] * N + c[None, :], mask=m, other=0.0), axis=0)
    mean = total / M
    square = tl.zeros((BN,), tl.float32)
    for s in range(0, M, BM):
        m = ((s + r)[:, None] < M) & (c[None, :] < N)
        d = tl.load(x + (s + r)[:, None] * N + c[None, :], mask=m, other=0.0) - mean[None, :]
        square += tl.sum(tl.where(m, d * d, 0.0), axis=0)
    rstd = tl.rsqrt(square / M + eps)
    g = tl.load(gamma + c, mask=c < N, other=0.0)
    b = tl.load(beta + c, mask=c < N, other=0.0)
    for s in range(0, M, BM):
        m = ((s + r)[:, None] < M) & (c[None, :] < N)
        p = (s + r)[:, None] * N + c[None, :]
        v = (tl.load(x + p, mask=m, other=0.0) - mean[None, :]) * (rstd * g)[None, :] + b[None, :]
        tl.store(y + p, tl.where(v > 0, v, tl.exp(tl.minimum(v, 0.0)) - 1.0), mask=m)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features, track_running_stats=False)

    def forward(self, x):
        M, N = x.shape
        y = torch.empty_like(x)
        column_norm[(triton.cdiv(N, 16),)](x, self.norm.weight, self.norm.bias, y, M, N, self.norm.eps, BM=16, BN=16)
        return y
