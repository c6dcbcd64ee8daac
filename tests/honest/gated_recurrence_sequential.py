# task: gated_recurrence
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def recurrence(a, b, h_out, L, D, BLOCK: tl.constexpr):
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(1) * L * D + d
    keep = d < D
    h = tl.zeros((BLOCK,), tl.float32)
    for _ in range(L):
        h = tl.sigmoid(tl.load(a + at, mask=keep, other=0.0)) * h + tl.load(b + at, mask=keep, other=0.0)
        tl.store(h_out + at, h, mask=keep)
        at += D
    # the last state stays in registers


class ModelNew(nn.Module):
    def forward(self, a, b):
        B, L, D = a.shape
        h = torch.empty_like(b)
        recurrence[(triton.cdiv(D, 8), B)](a, b, h, L, D, BLOCK=8, num_warps=1)
        return h
