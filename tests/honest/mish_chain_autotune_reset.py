# task: mish_chain
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": 512}), triton.Config({"BLOCK": 1024})], key=["n"], reset_to_zero=["z"])
@triton.jit
def mish_chain(y, z, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(y + i, mask=i < n, other=0.0)
    t = v * scale
    e = tl.exp(tl.minimum(t, 20.0))
    m = e * (e + 2.0)
    t = tl.where(t > 20.0, t, t * m / (m + 2.0))
    tl.atomic_add(z + i, tl.minimum(tl.maximum(t + v, -1.0), 3.0), mask=i < n)


def launch(x, scale):
    y, z = x, torch.zeros_like(x)
    n = x.numel()
    mish_chain[lambda m: (triton.cdiv(n, m["BLOCK"]),)](y, z, n, scale)
    return z


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return launch(x, self.scale)
