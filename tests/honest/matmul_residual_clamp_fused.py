# task: matmul_residual_clamp
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def fused(x, w, r, y, M, N, K, scale, low, high, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    acc = tl.full((BM, BN), 0.0, tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(x + m * K + k[None, :], (m < M) & (k[None, :] < K), 0.0)
        b = tl.load(w + k[:, None] * N + n, (k[:, None] < K) & (n < N), 0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    inside = (m < M) & (n < N)
    v = acc * scale + tl.load(r + m * N + n, inside, 0.0)
    tl.store(y + m * N + n, tl.minimum(tl.maximum(v, low), high), inside)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, scale, low, high):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(in_features, out_features))
        self.scale, self.low, self.high = scale, low, high

    def forward(self, x, residual):
        M, K = x.shape
        N = self.weight.shape[1]
        y = torch.empty_like(residual)
        fused[triton.cdiv(M, 32), triton.cdiv(N, 32)](
            x, self.weight, residual, y, M, N, K, self.scale, self.low, self.high, BM=32, BN=32, BK=32
        )
        return y
