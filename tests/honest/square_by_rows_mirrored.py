# task: square_by_rows
# A program takes every 132nd block row and writes each block left of the diagonal, and its mirror image.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mirrored(x, y, N, B: tl.constexpr):
    row = tl.program_id(0)
    while row * B < N:
        i = row * B + tl.arange(0, B)
        a = tl.load(x + i, mask=i < N, other=0.0)
        for col in range(0, row + 1):
            j = col * B + tl.arange(0, B)
            b = tl.load(x + j, mask=j < N, other=0.0)
            e = tl.exp(-tl.abs(a[:, None] - b[None, :]))
            keep = (i[:, None] < N) & (j[None, :] < N)
            tl.store(y + i[:, None] * N + j[None, :], e, mask=keep)
            if col < row:
                tl.store(y + j[None, :] * N + i[:, None], e, mask=keep)
        row += tl.num_programs(0)


class ModelNew(nn.Module):
    def forward(self, x):
        N = x.shape[0]
        y = torch.empty((N, N), device=x.device, dtype=x.dtype)
        sms = torch.cuda.get_device_properties(x.device).multi_processor_count
        mirrored[(min(sms // 4, triton.cdiv(N, 32)),)](x, y, N, B=32)
        return y
