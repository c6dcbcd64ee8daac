# task: plain_mm
# The rows of the last tile begin anew, as in many published products, with hints that say how the others lie.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    [triton.Config({"BM": 128, "BN": 128, "BK": 32, "GROUP": 8}, num_warps=8), triton.Config({"BM": 64, "BN": 128, "BK": 32, "GROUP": 8})],
    key=["M", "N", "K"],
)
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BK"] == 0})
@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr):
    pid = tl.program_id(0)
    gm, gn = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * gn
    group = pid // width
    size = min(gm - group * GROUP, GROUP)
    pm = group * GROUP + pid % size
    pn = (pid % width) // size
    tl.assume(pm >= 0)
    tl.assume(pn >= 0)
    rm, rn = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN)
    ram = tl.max_contiguous(tl.multiple_of(rm % M, BM), BM)
    rbn = tl.max_contiguous(tl.multiple_of(rn % N, BN), BN)
    rk = tl.arange(0, BK)
    x_ptr, y_ptr = a + ram[:, None] * K + rk[None, :], b + rk[:, None] * N + rbn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        if EVEN_K:
            x, y = tl.load(x_ptr), tl.load(y_ptr)
        else:
            x = tl.load(x_ptr, mask=rk[None, :] < K - k * BK, other=0.0)
            y = tl.load(y_ptr, mask=rk[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(x, y, acc, input_precision="ieee")
        x_ptr += BK
        y_ptr += BK * N
    tl.store(c + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, a, b):
        M, K = a.shape
        N = b.shape[1]
        c = torch.empty((M, N), device=a.device, dtype=a.dtype)
        matmul[lambda meta: (triton.cdiv(M, meta["BM"]) * triton.cdiv(N, meta["BN"]),)](a, b, c, M, N, K)
        return c
