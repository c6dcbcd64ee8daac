# task: rope_qk
# Whether a program turns a head of the queries or of the keys goes by its number; both are turned in place in copies.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def turn(q, k, cos, sin, S, HALF, HQ: tl.constexpr, HK: tl.constexpr, BS: tl.constexpr, BH: tl.constexpr):
    head, batch = tl.program_id(1), tl.program_id(2)
    if head < HQ:
        base = q + (batch * HQ + head).to(tl.int64) * S * HALF * 2
    else:
        base = k + (batch * HK + head - HQ).to(tl.int64) * S * HALF * 2
    s, h = tl.program_id(0) * BS + tl.arange(0, BS), tl.arange(0, BH)
    keep = (s[:, None] < S) & (h[None, :] < HALF)
    at = s[:, None] * HALF + h[None, :]
    c, t = tl.load(cos + at, mask=keep, other=0.0), tl.load(sin + at, mask=keep, other=0.0)
    p = base + s[:, None] * HALF * 2 + h[None, :]
    a, b = tl.load(p, mask=keep, other=0.0), tl.load(p + HALF, mask=keep, other=0.0)
    tl.store(p, a * c - b * t, mask=keep)
    tl.store(p + HALF, b * c + a * t, mask=keep)


class ModelNew(nn.Module):
    def forward(self, q, k, cos, sin):
        q, k = q.clone(), k.clone()
        B, HQ, S, D = q.shape
        HK = k.shape[1]
        grid = (triton.cdiv(S, 16), HQ + HK, B)
        turn[grid](q, k, cos, sin, S, D // 2, HQ=HQ, HK=HK, BS=16, BH=triton.next_power_of_2(D // 2))
        return q, k
