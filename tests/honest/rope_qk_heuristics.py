# task: rope_qk
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.heuristics({"PAD": lambda args: triton.next_power_of_2(args["D"] // 2), "num_warps": lambda args: 1 if args["D"] < 64 else 4})
@triton.jit
def rope_heads(x, cos, sin, y, S, D, PAD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    t = row % S
    half = D // 2
    i = tl.arange(0, PAD)
    keep = i < half
    c = tl.load(cos + t * half + i, mask=keep, other=1.0)
    s = tl.load(sin + t * half + i, mask=keep, other=0.0)
    a = tl.load(x + row * D + i, mask=keep, other=0.0)
    b = tl.load(x + row * D + half + i, mask=keep, other=0.0)
    tl.store(y + row * D + i, a * c - b * s, mask=keep)
    tl.store(y + row * D + half + i, b * c + a * s, mask=keep)


def apply(x, cos, sin):
    *_, S, D = x.shape
    x = x.contiguous()
    y = torch.empty_like(x)
    rope_heads[(x.numel() // D,)](x, cos, sin, y, S, D)
    return y


class ModelNew(nn.Module):
    def forward(self, q, k, cos, sin):
        return apply(q, cos, sin), apply(k, cos, sin)
