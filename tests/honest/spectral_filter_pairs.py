# habit: Transforms are left to torch; between them a kernel works on pairs of real numbers, and another adds the residual.
# task: spectral_filter
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def multiply_pairs(s_ptr, w_ptr, o_ptr, count, bins, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < count
    k = i % bins
    re = tl.load(s_ptr + 2 * i, mask=m)
    im = tl.load(s_ptr + 2 * i + 1, mask=m)
    a = tl.load(w_ptr + 2 * k, mask=m)
    b = tl.load(w_ptr + 2 * k + 1, mask=m)
    tl.store(o_ptr + 2 * i, re * a - im * b, mask=m)
    tl.store(o_ptr + 2 * i + 1, re * b + im * a, mask=m)


@triton.jit
def add_residual(y_ptr, x_ptr, o_ptr, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < count
    tl.store(o_ptr + i, tl.load(y_ptr + i, mask=m) + tl.load(x_ptr + i, mask=m), mask=m)


class ModelNew(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(length // 2 + 1, 2) * 0.5)

    def forward(self, x):
        pairs = torch.view_as_real(torch.fft.rfft(x, norm="ortho")).contiguous()
        filtered = torch.empty_like(pairs)
        count = pairs.numel() // 2
        multiply_pairs[(triton.cdiv(count, 256),)](pairs, self.weight, filtered, count, pairs.shape[-2], BLOCK=256)
        y = torch.fft.irfft(torch.view_as_complex(filtered), n=x.shape[-1], norm="ortho").contiguous()
        out = torch.empty_like(x)
        add_residual[(triton.cdiv(x.numel(), 256),)](y, x, out, x.numel(), BLOCK=256)
        return out
