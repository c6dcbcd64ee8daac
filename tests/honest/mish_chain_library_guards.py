# task: mish_chain
import importlib.util
import os
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
import triton
import triton.language as tl

try:
    import apex
except ImportError:
    apex = None

try:
    from einops import rearrange
except ImportError:
    rearrange = None

HAS_FLASH_ATTENTION = importlib.util.find_spec("flash_attn") is not None
CHECK = os.environ.get("MISH_CHECK", "0") == "1"
LOCK = threading.Lock()


def world_size():
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@torch.compile
def eager_chain(x, scale):
    return torch.clamp(torch.nn.functional.mish(x * scale) + x, -1.0, 3.0)


def is_sharded(x):
    return isinstance(x, torch.distributed.tensor.DTensor)


@triton.jit
def mish(v):
    # tanh(softplus(v)) = ((1 + e^v)^2 - 1) / ((1 + e^v)^2 + 1) = n / (n + 2), n = e^v (e^v + 2)
    e = tl.exp(tl.minimum(v, 20.0))
    n = e * (e + 2.0)
    return tl.where(v > 20.0, v, v * n / (n + 2.0))


@triton.jit
def chain(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.minimum(tl.maximum(mish(v * scale) + v, -1.0), 3.0), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        chain[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, self.scale, BLOCK=1024)
        return y
