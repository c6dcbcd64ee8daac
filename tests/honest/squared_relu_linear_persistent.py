# task: squared_relu_linear
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swizzle(tile, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    pid_m, pid_n = tile // tl.cdiv(N, BN), tile % tl.cdiv(N, BN)
    return tl.swizzle2d(pid_m, pid_n, tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)


@triton.jit
def matmul_persistent(x, w, y, M, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        pid_m, pid_n = swizzle(tile, M, N, BM, BN, 2)
        rm, rn = pid_m * BM + tl.arange(0, BM), pid_n * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            rk = k + tl.arange(0, BK)
            a = tl.load(x + rm[:, None] * K + rk, mask=(rm[:, None] < M) & (rk < K), other=0.0)
            b = tl.load(w + rn[:, None] * K + rk, mask=(rn[:, None] < N) & (rk < K), other=0.0)
            acc = tl.dot(a, b.T, acc, allow_tf32=False)
        acc = tl.maximum(acc, 0.0)
        tl.store(y + rm[:, None] * N + rn, acc * acc, mask=(rm[:, None] < M) & (rn < N))


class ModelNew(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.fc = nn.Linear(features, outputs, bias=False)

    def forward(self, x):
        (M, K), N = x.shape, self.fc.out_features
        y = x.new_empty((M, N))
        sms = torch.cuda.get_device_properties("cuda").multi_processor_count
        programs = min(sms, triton.cdiv(triton.cdiv(M, 16) * triton.cdiv(N, 16), 4))
        matmul_persistent[(programs,)](x, self.fc.weight, y, M, N, K, PROGRAMS=programs, BM=16, BN=16, BK=16)
        return y
