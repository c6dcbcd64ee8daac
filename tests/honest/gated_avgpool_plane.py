# task: gated_avgpool
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def plane_mean(x, bias, y, HW, C, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, HW, BLOCK):
        i = k + tl.arange(0, BLOCK)
        v = tl.load(x + plane * HW + i, mask=i < HW, other=0.0)
        acc += v * tl.minimum(tl.maximum(v + 3.0, 0.0), 6.0) / 6.0
    tl.store(y + plane, tl.sum(acc, axis=0) / HW + tl.load(bias + plane % C))


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        B, C, H, W = x.shape
        y = torch.empty((B, C), device=x.device, dtype=x.dtype)
        plane_mean[(B * C,)](x, self.bias, y, H * W, C, BLOCK=128)
        return y
