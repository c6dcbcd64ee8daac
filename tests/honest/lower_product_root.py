# task: lower_product
# A program's tile of the triangle is found by a square root, and its mirror image gets zeros.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def triangle(a, c, N, K, B: tl.constexpr, BK: tl.constexpr):
    t = tl.program_id(0)
    r = ((tl.sqrt(8.0 * t.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    while (r + 1) * (r + 2) // 2 <= t:
        r += 1
    while r * (r + 1) // 2 > t:
        r -= 1
    s = t - r * (r + 1) // 2
    rm, rn = r * B + tl.arange(0, B), s * B + tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < N) & (rk[None, :] < K), other=0.0)
        y = tl.load(a + rn[:, None] * K + rk[None, :], mask=(rn[:, None] < N) & (rk[None, :] < K), other=0.0)
        acc = tl.dot(x, y.T, acc, input_precision="ieee")
    keep = (rm[:, None] < N) & (rn[None, :] < N)
    tl.store(c + rm[:, None] * N + rn[None, :], tl.where(rm[:, None] >= rn[None, :], acc, 0.0), mask=keep)
    if s < r:
        tl.store(c + rn[None, :] * N + rm[:, None], tl.zeros((B, B), tl.float32), mask=keep)


class ModelNew(nn.Module):
    def forward(self, a):
        N, K = a.shape
        c = torch.empty((N, N), device=a.device, dtype=a.dtype)
        B = 64 if N > 64 else 16
        blocks = triton.cdiv(N, B)
        triangle[(blocks * (blocks + 1) // 2,)](a, c, N, K, B=B, BK=16)
        return c
