# task: expert_linear
# One launch for each expert, on views of the rows that are its own.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear(x, w, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(x + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(w + n[:, None] * K + k[None, :], mask=(n[:, None] < N) & (k[None, :] < K), other=0.0)
        acc += tl.dot(a, tl.trans(b), input_precision="ieee")
    tl.store(y + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


class ModelNew(nn.Module):
    def __init__(self, shares, features, outputs):
        super().__init__()
        self.shares = list(shares)
        self.weight = nn.Parameter(torch.empty(len(shares), outputs, features))

    def forward(self, x):
        _, N, K = self.weight.shape
        unit = x.shape[0] // sum(self.shares)
        y = torch.empty(x.shape[0], N, device=x.device, dtype=x.dtype)
        row = 0
        for weight, share in zip(self.weight.unbind(0), self.shares):
            M = unit * share
            grid = (triton.cdiv(M, 16), triton.cdiv(N, 16), 1)
            linear[grid](x[row : row + M], weight, y[row : row + M], M, N, K, BM=16, BN=16, BK=16, num_warps=2)
            row += M
        return y
