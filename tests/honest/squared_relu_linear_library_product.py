# task: squared_relu_linear
import importlib.util
import os

import torch
import torch.nn as nn
import triton
import triton.language as tl

USE_LARGE = os.environ.get("LARGE_BLOCKS", "1") == "1"
HAS_APEX = importlib.util.find_spec("apex") is not None
BLOCKS = {torch.float32: 256, torch.float16: 512, torch.bfloat16: 512}


@triton.jit
def relu_squared_(y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.maximum(tl.load(y + i, mask=i < n), 0.0)
    tl.store(y + i, v * v, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.fc = nn.Linear(features, outputs, bias=False)

    def forward(self, x):
        if isinstance(x, torch.distributed.tensor.DTensor) if torch.distributed.is_available() and HAS_APEX else False:
            x = x.full_tensor()
        y = self.fc(x)
        block = BLOCKS[y.dtype] * (2 if USE_LARGE else 1)
        relu_squared_[(triton.cdiv(y.numel(), block),)](y, y.numel(), BLOCK=block)
        return y
