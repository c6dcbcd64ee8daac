# task: quantize_rows_int8
import torch
import torch.nn as nn
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def quantize_rowwise(x_ptr, out_ptr, scale_ptr, n_cols, P2: tl.constexpr):
    pid = tl.program_id(axis=0)
    arange = tl.arange(0, P2)
    offsets = pid * n_cols + arange
    row_mask = arange < n_cols
    x = tl.load(x_ptr + offsets, mask=row_mask, other=0.0)
    scale = tl.maximum(tl.max(tl.where(row_mask, tl.abs(x), 0), axis=0), 1e-6) / 127.0
    code = libdevice.rint(tl.div_rn(x, scale))
    tl.store(out_ptr + offsets, code.to(tl.int8), mask=row_mask)
    tl.store(scale_ptr + pid, scale)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor):
        output = torch.empty(*x.shape, device=x.device, dtype=torch.int8)
        scale = torch.empty(x.shape[0], 1, device=x.device, dtype=x.dtype)
        P2 = int(2 ** (triton.next_power_of_2(x.shape[1]).bit_length() - 1))
        quantize_rowwise[(x.shape[0],)](x, output, scale, x.shape[1], P2=P2)
        return output, scale
