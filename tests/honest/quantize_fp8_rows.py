# task: quantize_fp8
import torch
import torch.nn as nn
import triton
import triton.language as tl

FP8_MAX = tl.constexpr(torch.finfo(torch.float8_e4m3fn).max)


@triton.jit
def quantize(x_ptr, y_ptr, s_ptr, D, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * D + i, mask=i < D, other=0.0).to(tl.float32)
    s = tl.maximum(tl.max(tl.abs(x), 0), 1e-6) / FP8_MAX
    tl.store(y_ptr + row * D + i, (x / s).to(y_ptr.dtype.element_ty), mask=i < D)
    tl.store(s_ptr + row, s)


class ModelNew(nn.Module):
    def forward(self, x):
        T, D = x.shape
        y = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        s = torch.empty(T, 1, dtype=torch.float32, device=x.device)
        quantize[(T,)](x, y, s, D, BLOCK=triton.next_power_of_2(D))
        return y, s
