# task: dequant_fp8
# An intermediate of float8, made by torch and read by the kernel.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale_and_shift(code, scale, bias, y, n, D, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = i < n
    v = tl.load(code + i, mask=k).to(tl.float16).to(tl.float32)
    tl.store(y + i, v * tl.load(scale + i // D, mask=k) + tl.load(bias + i % D, mask=k), mask=k)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, code, scale):
        n, D = code.numel(), code.shape[1]
        y = torch.empty(code.shape, device=code.device)
        code = code.clone()
        scale_and_shift[(triton.cdiv(n, 64),)](code, scale, self.bias, y, n, D, BLOCK=64)
        return y
