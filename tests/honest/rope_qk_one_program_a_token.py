# task: rope_qk
# One program a token rotates all heads of q and k; the heads are padded to a power of two.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _rotate(x, sb, sh, ss, out, b, t, heads, c, s, HEADS: tl.constexpr, HALF, PAD: tl.constexpr):
    h = tl.arange(0, HEADS)[:, None]
    i = tl.arange(0, PAD)[None, :]
    keep = (h < heads) & (i < HALF)
    at = b * sb + h * sh + t * ss + i
    lo = tl.load(x + at, mask=keep, other=0)
    hi = tl.load(x + at + HALF, mask=keep, other=0)
    tl.store(out + at, lo * c - hi * s, mask=keep)
    tl.store(out + at + HALF, hi * c + lo * s, mask=keep)


@triton.jit
def rope(q, k, qo, ko, cos, sin, S, HQ, HK, qb, qh, qs, kb, kh, ks, HALF, PQ: tl.constexpr, PK: tl.constexpr, PAD: tl.constexpr):
    b, t = tl.program_id(0) // S, tl.program_id(0) % S
    i = tl.arange(0, PAD)[None, :]
    c = tl.load(cos + t * HALF + i, mask=i < HALF, other=0)
    s = tl.load(sin + t * HALF + i, mask=i < HALF, other=0)
    _rotate(q, qb, qh, qs, qo, b, t, HQ, c, s, PQ, HALF, PAD)
    _rotate(k, kb, kh, ks, ko, b, t, HK, c, s, PK, HALF, PAD)


class ModelNew(nn.Module):
    def forward(self, q, k, cos, sin):
        B, HQ, S, D = q.shape
        HK, half = k.shape[1], D // 2
        qo, ko = torch.empty_like(q), torch.empty_like(k)
        power = triton.next_power_of_2
        rope[(B * S,)](
            q, k, qo, ko, cos, sin, S, HQ, HK, *q.stride()[:3], *k.stride()[:3], half,
            PQ=power(HQ), PK=power(HK), PAD=power(half), num_warps=2,
        )
        return qo, ko
