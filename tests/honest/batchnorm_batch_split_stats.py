# task: batchnorm_batch
# Row blocks write their own mean and centred squares to a workspace; a second kernel merges them; a third applies.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def partial(x, means, m2s, M, N, BM: tl.constexpr, BN: tl.constexpr):
    part = tl.program_id(0)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    r = part * BM + tl.arange(0, BM)
    mask = (r[:, None] < M) & (c[None, :] < N)
    v = tl.load(x + r[:, None] * N + c[None, :], mask=mask, other=0.0)
    count = tl.minimum(M - part * BM, BM)
    mean = tl.sum(v, 0) / count
    d = tl.where(mask, v - mean[None, :], 0.0)
    tl.store(means + part * N + c, mean, mask=c < N)
    tl.store(m2s + part * N + c, tl.sum(d * d, 0), mask=c < N)


@triton.jit
def merge(means, m2s, factor, mean_out, gamma, M, N, parts, eps, BM: tl.constexpr, BN: tl.constexpr):
    c = tl.program_id(0) * BN + tl.arange(0, BN)
    keep = c < N
    mean = tl.zeros((BN,), tl.float32)
    m2 = tl.zeros((BN,), tl.float32)
    seen = 0
    for p in range(parts):
        n = tl.minimum(M - p * BM, BM)
        pm = tl.load(means + p * N + c, mask=keep, other=0.0)
        delta = pm - mean
        m2 += tl.load(m2s + p * N + c, mask=keep, other=0.0) + delta * delta * (seen * 1.0 * n / (seen + n))
        mean += delta * (n * 1.0 / (seen + n))
        seen += n
    tl.store(mean_out + c, mean, mask=keep)
    tl.store(factor + c, tl.load(gamma + c, mask=keep) * tl.rsqrt(m2 / M + eps), mask=keep)


@triton.jit
def apply(x, mean, factor, beta, y, n, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    c = i % N
    v = (tl.load(x + i, mask=m) - tl.load(mean + c, mask=m)) * tl.load(factor + c, mask=m) + tl.load(beta + c, mask=m)
    tl.store(y + i, tl.where(v > 0, v, tl.exp(v) - 1), mask=m)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features, track_running_stats=False)

    def forward(self, x):
        M, N = x.shape
        BM, BN = 32, 16
        parts = triton.cdiv(M, BM)
        work = torch.empty((2 * parts + 2, N), device=x.device, dtype=torch.float32)
        means, m2s, mean, factor = work[:parts], work[parts : 2 * parts], work[-2], work[-1]
        y = torch.empty_like(x)
        partial[(parts, triton.cdiv(N, BN))](x, means, m2s, M, N, BM=BM, BN=BN)
        merge[(triton.cdiv(N, BN),)](means, m2s, factor, mean, self.norm.weight, M, N, parts, self.norm.eps, BM=BM, BN=BN)
        apply[(triton.cdiv(x.numel(), 512),)](x, mean, factor, self.norm.bias, y, x.numel(), N, BLOCK=512)
        return y
