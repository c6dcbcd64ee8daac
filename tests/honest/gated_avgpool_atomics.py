# task: gated_avgpool
# Many programs a plane add their parts to an output that starts as the bias.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def start(bias, y, n, C, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(bias + i % C, mask=i < n), mask=i < n)


@triton.jit
def accumulate(x, y, HW, inv, BLOCK: tl.constexpr):
    plane, part = tl.program_id(0), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + plane * HW + i, mask=i < HW, other=0.0)
    gate = tl.clamp(v / 6.0 + 0.5, 0.0, 1.0)
    tl.atomic_add(y + plane, tl.sum(v * gate) * inv)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        B, C, H, W = x.shape
        y = torch.empty(B, C, device=x.device, dtype=x.dtype)
        start[(triton.cdiv(B * C, 128),)](self.bias, y, B * C, C, BLOCK=128)
        accumulate[(B * C, triton.cdiv(H * W, 32))](x, y, H * W, 1.0 / (H * W), BLOCK=32, num_warps=1)
        return y
