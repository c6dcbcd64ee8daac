# task: gemm_tanh
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def partial_gemm(a, b, ws, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr):
    pid = tl.program_id(0)
    ks = tl.program_id(1)
    nn_ = tl.cdiv(N, BN)
    m = (pid // nn_) * BM + tl.arange(0, BM)
    n = (pid % nn_) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(ks * BK, K, BK * SPLIT):
        k = k0 + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc += tl.dot(x, y, input_precision="ieee")
    tl.store(ws + ks * M * N + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def reduce_tanh(ws, c, total, scale, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for s in tl.static_range(SPLIT):
        acc += tl.load(ws + s * total + i, mask=i < total, other=0.0)
    tl.store(c + i, (2 * tl.sigmoid(2 * acc) - 1) * scale, mask=i < total)


class ModelNew(nn.Module):
    SPLIT = 4

    def forward(self, a, b):
        M, K = a.shape
        N = b.shape[1]
        ws = torch.empty((self.SPLIT, M, N), device=a.device, dtype=torch.float32)
        c = torch.empty((M, N), device=a.device, dtype=a.dtype)
        partial_gemm[(triton.cdiv(M, 16) * triton.cdiv(N, 16), self.SPLIT)](a, b, ws, M, N, K, 16, 16, 16, self.SPLIT)
        reduce_tanh[(triton.cdiv(M * N, 256),)](ws, c, M * N, K ** -0.5, self.SPLIT, 256)
        return c
