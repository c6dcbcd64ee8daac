# task: softcap_scores
# Blocks behind the diagonal are not read: they are zeros. The block size is decided by a constexpr function.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.constexpr_function
def block_of(size):
    return 8 if size <= 64 else 256


@triton.jit
def capped(x, i, row, S, cap):
    v = tl.load(x + row * S + i, mask=i <= row % S, other=0.0) / cap
    e = tl.exp(-2.0 * tl.abs(v))
    t = (1.0 - e) / (1.0 + e)
    t = tl.where(v < 0, -t, t)
    return tl.where(i <= row % S, t * cap, float("-inf"))


@triton.jit
def softmax(x, y, S: tl.constexpr, cap):
    row = tl.program_id(0)
    BLOCK: tl.constexpr = block_of(S)
    end = row % S + 1
    top, total = float("-inf"), 0.0
    for start in range(0, end, BLOCK):
        v = capped(x, start + tl.arange(0, BLOCK), row, S, cap)
        now = tl.maximum(top, tl.max(v, 0))
        total = total * tl.exp(top - now) + tl.sum(tl.exp(v - now), 0)
        top = now
    for start in range(0, S, BLOCK):
        i = start + tl.arange(0, BLOCK)
        p = tl.zeros((BLOCK,), tl.float32)
        if start < end:
            p = tl.exp(capped(x, i, row, S, cap) - top) / total
        tl.store(y + row * S + i, p, mask=i < S)


class ModelNew(nn.Module):
    def __init__(self, cap):
        super().__init__()
        self.cap = float(cap)

    def forward(self, scores):
        y = torch.empty_like(scores)
        softmax[(scores.shape[0] * scores.shape[1],)](scores, y, scores.shape[2], self.cap)
        return y
