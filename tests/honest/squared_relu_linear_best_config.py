# task: squared_relu_linear
# The first kernel writes partial products over slices of K; how many is read from the configuration that won.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BM": 16, "BN": 16, "BK": 16}), triton.Config({"BM": 16, "BN": 32, "BK": 16})], key=["M", "N", "K"])
@triton.jit
def partial(x, w, part, M, N, K, span, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    start = tl.program_id(2) * span
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(start, min(start + span, K), BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(x + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < min(start + span, K)), other=0.0)
        b = tl.load(w + rn[:, None] * K + rk[None, :], mask=(rn[:, None] < N) & (rk[None, :] < min(start + span, K)), other=0.0)
        acc += tl.dot(a, b.T, input_precision="ieee")
    tl.store(part + tl.program_id(2) * M * N + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def finish(part, y, n, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for s in tl.static_range(SPLITS):
        acc += tl.load(part + s * n + i, mask=i < n, other=0.0)
    acc = tl.maximum(acc, 0.0)
    tl.store(y + i, acc * acc, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.fc = nn.Linear(features, outputs, bias=False)

    def forward(self, x):
        (M, K), N = x.shape, self.fc.weight.shape[0]
        span = triton.cdiv(K, 2)
        part = x.new_empty(2, M, N)
        partial[lambda m: (triton.cdiv(M, m["BM"]), triton.cdiv(N, m["BN"]), 2)](x, self.fc.weight, part, M, N, K, span)
        block = 8 * partial.best_config.kwargs["BN"]
        y = x.new_empty(M, N)
        finish[(triton.cdiv(M * N, block),)](part, y, M * N, SPLITS=2, BLOCK=block)
        return y
