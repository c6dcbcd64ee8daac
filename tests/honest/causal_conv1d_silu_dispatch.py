# task: causal_conv1d_silu
# A dict at module level chooses the activation, a constexpr function that the kernel calls.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu(v):
    return v / (1.0 + tl.exp(-v))


@triton.jit
def identity(v):
    return v


ACTIVATIONS = {"silu": silu, "swish": silu, None: identity}


@triton.jit
def conv(x, w, b, y, D, L, activation: tl.constexpr, BD: tl.constexpr, BL: tl.constexpr):
    d = (tl.program_id(1) * BD + tl.arange(0, BD))[:, None]
    t = (tl.program_id(0) * BL + tl.arange(0, BL))[None, :]
    row = tl.program_id(2) * D * L + d * L
    inside = (d < D) & (t < L)
    acc = tl.load(b + d, mask=d < D, other=0.0) + tl.zeros((BD, BL), tl.float32)
    acc += tl.load(x + row + t, mask=inside, other=0.0) * tl.load(w + d * 4 + 3, mask=d < D, other=0.0)
    acc += tl.load(x + row + t - 1, mask=inside & (t > 0), other=0.0) * tl.load(w + d * 4 + 2, mask=d < D, other=0.0)
    acc += tl.load(x + row + t - 2, mask=inside & (t > 1), other=0.0) * tl.load(w + d * 4 + 1, mask=d < D, other=0.0)
    acc += tl.load(x + row + t - 3, mask=inside & (t > 2), other=0.0) * tl.load(w + d * 4, mask=d < D, other=0.0)
    tl.store(y + row + t, activation(acc), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, dim, width, activation="silu"):
        super().__init__()
        assert width == 4
        self.weight = nn.Parameter(torch.randn(dim, width))
        self.bias = nn.Parameter(torch.randn(dim))
        self.activation = ACTIVATIONS[activation]

    def forward(self, x):
        B, D, L = x.shape
        y = torch.empty_like(x)
        conv[(triton.cdiv(L, 32), triton.cdiv(D, 4), B)](x, self.weight, self.bias, y, D, L, activation=self.activation, BD=4, BL=32)
        return y
