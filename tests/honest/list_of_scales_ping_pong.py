# habit: A launch for each entry of parameter lists, between two buffers in turn.
# task: list_of_scales
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def layer(x_ptr, scale_ptr, shift_ptr, y_ptr, n, D, BLOCK: tl.constexpr):
    i = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    d = i % D
    x = tl.load(x_ptr + i, m)
    y = tanh(x * tl.load(scale_ptr + d, m) + tl.load(shift_ptr + d, m))
    tl.store(y_ptr + i, y, m)


class ModelNew(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(dim) + 0.5) for _ in range(depth)])
        self.shifts = nn.ParameterList([nn.Parameter(torch.randn(dim) * 0.1) for _ in range(depth)])

    def forward(self, x):
        buffers = [torch.empty_like(x), torch.empty_like(x)]
        src = x
        for i, (scale, shift) in enumerate(zip(self.scales, self.shifts)):
            dst = buffers[i % 2]
            layer[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](src, scale, shift, dst, x.numel(), x.shape[-1], BLOCK=1024)
            src = dst
        return src
