# task: causal_conv1d_silu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def causal_conv1d_fwd(x, w, b, y, D, L, W: tl.constexpr, HAS_BIAS: tl.constexpr, ACT: tl.constexpr, BL: tl.constexpr):
    channel = tl.program_id(1) % D
    base = tl.program_id(1).to(tl.int64) * L
    t = tl.program_id(0) * BL + tl.arange(0, BL)
    acc = tl.zeros((BL,), tl.float32)
    for j in tl.static_range(0, W):
        s = t - (W - 1) + j
        acc += tl.load(x + base + s, mask=(s >= 0) & (s < L), other=0.0) * tl.load(w + channel * W + j)
    if HAS_BIAS:
        acc += tl.load(b + channel)
    if ACT == "silu":
        acc = acc * tl.sigmoid(acc)
    tl.store(y + base + t, acc, mask=t < L)


class ModelNew(nn.Module):
    def __init__(self, dim, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, width))
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        B, D, L = x.shape
        y = torch.empty_like(x)
        causal_conv1d_fwd[(triton.cdiv(L, 16), B * D)](
            x, self.weight, self.bias, y, D, L, W=self.weight.shape[1], HAS_BIAS=self.bias is not None, ACT="silu", BL=16
        )
        return y
