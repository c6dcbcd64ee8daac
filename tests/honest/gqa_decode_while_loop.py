# habit: A while loop over the keys, without products of tiles; hints on arguments.
# task: gqa_decode
import math

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def decode(q_ptr, k_ptr, v_ptr, o_ptr, S, R, D: tl.constexpr, qk_scale, BLOCK: tl.constexpr):
    tl.assume(S > 0)
    bh = tl.program_id(0)
    bg = bh // R
    d = tl.max_contiguous(tl.arange(0, D), D)
    q = tl.load(q_ptr + bh * D + d) * qk_scale
    m = -float("inf")
    l = 0.0
    acc = tl.zeros([D], tl.float32)
    start = 0
    while start < S:
        s = start + tl.arange(0, BLOCK)
        mask = s < S
        row = (bg * S + s).to(tl.int64)
        k = tl.load(k_ptr + row[:, None] * D + d[None, :], mask=mask[:, None], other=0.0)
        qk = tl.where(mask, tl.sum(q[None, :] * k, axis=1), -float("inf"))
        new_m = tl.maximum(m, tl.max(qk, axis=0))
        p = tl.exp2(qk - new_m)
        scale = tl.exp2(m - new_m)
        v = tl.load(v_ptr + row[:, None] * D + d[None, :], mask=mask[:, None], other=0.0)
        acc = acc * scale + tl.sum(p[:, None] * v, axis=0)
        l = l * scale + tl.sum(p, axis=0)
        m = new_m
        start += BLOCK
    tl.store(o_ptr + bh * D + d, acc / l)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        b, h, d = q.shape
        out = torch.empty_like(q)
        decode[(b * h,)](q, k, v, out, k.shape[2], h // k.shape[1], D=d, qk_scale=d**-0.5 * math.log2(math.e), BLOCK=64)
        return out
