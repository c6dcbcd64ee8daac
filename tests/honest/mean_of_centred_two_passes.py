# task: mean_of_centred
# computes every op that the reference computes, though what is off the mean is nothing on average
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, offset_ptr, low_ptr, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * D + d, mask=d < D)
    low = tl.minimum(x, tl.load(offset_ptr + d, mask=d < D))
    tl.store(low_ptr + row, tl.sum(tl.where(d < D, low, 0.0)) / D)


@triton.jit
def whole(low_ptr, out_ptr, T, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, T, BLOCK):
        t = start + tl.arange(0, BLOCK)
        total += tl.load(low_ptr + t, mask=t < T, other=0.0)
    mean = tl.sum(total) / T
    off = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, T, BLOCK):
        t = start + tl.arange(0, BLOCK)
        off += tl.where(t < T, tl.load(low_ptr + t, mask=t < T, other=0.0) - mean, 0.0)
    x = tl.sum(off) / T
    tl.store(out_ptr, (tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))) * 3.0)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.offset = nn.Parameter(torch.randn(width))

    def forward(self, x):
        T, D = x.shape
        low, out = torch.empty(T, device=x.device), torch.empty((), device=x.device)
        rows[(T,)](x, self.offset, low, D, BLOCK=triton.next_power_of_2(D))
        whole[(1,)](low, out, T, BLOCK=1024)
        return out
