# task: batchnorm_running
# The running statistics are updated by torch, from what the kernel leaves.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def batchnorm(x, w, b, y, means, variances, M, N, eps, BM: tl.constexpr, BN: tl.constexpr):
    c = tl.program_id(0) * BN + tl.arange(0, BN)[None, :]
    r = tl.arange(0, BM)[:, None]
    k = (r < M) & (c < N)
    v = tl.load(x + r * N + c, mask=k, other=0.0)
    mean = tl.sum(v, 0, keep_dims=True) / M
    d = tl.where(r < M, v - mean, 0.0)
    squares = tl.sum(d * d, 0, keep_dims=True)
    tl.store(means + c, mean, mask=c < N)
    tl.store(variances + c, squares / (M - 1), mask=c < N)
    z = d * tl.rsqrt(squares / M + eps) * tl.load(w + c, mask=c < N) + tl.load(b + c, mask=c < N)
    tl.store(y + r * N + c, tl.maximum(z, 0.1 * z), mask=k)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features, momentum=0.1)

    def forward(self, x):
        M, N = x.shape
        y = torch.empty_like(x)
        mean, var = torch.empty_like(self.norm.running_mean), torch.empty_like(self.norm.running_var)
        batchnorm[(triton.cdiv(N, 4),)](
            x, self.norm.weight, self.norm.bias, y, mean, var, M, N, self.norm.eps, BM=triton.next_power_of_2(M), BN=4
        )
        with torch.no_grad():
            self.norm.running_mean.mul_(1 - self.norm.momentum).add_(mean, alpha=self.norm.momentum)
            self.norm.running_var.lerp_(var, self.norm.momentum)
        return y
