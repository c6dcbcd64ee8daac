# task: unit_rows
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def unit_row(x, y, D, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    v = tl.load(x + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    length = tl.maximum(tl.sqrt(tl.sum(v * v, axis=0)), 1e-12)
    tl.store(y + row * D + d, v / length, mask=d < D)


class ModelNew(nn.Module):
    def forward(self, x):
        T, D = x.shape
        y = torch.empty_like(x)
        unit_row[(T,)](x, y, D, BLOCK=triton.next_power_of_2(D))
        return y
