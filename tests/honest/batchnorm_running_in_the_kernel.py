# task: batchnorm_running
# The kernel updates the running statistics, as the reference does.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def batchnorm(x, w, b, running_mean, running_var, y, M, N, eps, momentum, BM: tl.constexpr, BN: tl.constexpr):
    c = tl.program_id(0) * BN + tl.arange(0, BN)[None, :]
    r = tl.arange(0, BM)[:, None]
    k = (r < M) & (c < N)
    v = tl.load(x + r * N + c, mask=k, other=0.0)
    mean = tl.sum(v, 0, keep_dims=True) / M
    d = tl.where(r < M, v - mean, 0.0)
    squares = tl.sum(d * d, 0, keep_dims=True)
    z = d * tl.rsqrt(squares / M + eps) * tl.load(w + c, mask=c < N) + tl.load(b + c, mask=c < N)
    one = c < N
    old_mean = tl.load(running_mean + c, mask=one)
    old_var = tl.load(running_var + c, mask=one)
    tl.store(running_mean + c, (1 - momentum) * old_mean + momentum * mean, mask=one)
    tl.store(running_var + c, (1 - momentum) * old_var + momentum * squares / (M - 1), mask=one)
    tl.store(y + r * N + c, tl.maximum(z, 0.1 * z), mask=k)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features, momentum=0.1)

    def forward(self, x):
        M, N = x.shape
        y = torch.empty_like(x)
        norm = self.norm
        norm.num_batches_tracked += 1
        batchnorm[(triton.cdiv(N, 4),)](
            x, norm.weight, norm.bias, norm.running_mean, norm.running_var, y, M, N, norm.eps, norm.momentum,
            BM=triton.next_power_of_2(M), BN=4,
        )  # fmt: skip
        return y
