# task: rmsnorm_silu_gate
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _rms_gate(x_ptr, g_ptr, w_ptr, y_ptr, x_stride, D, eps: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    m = c < D
    x = tl.load(x_ptr + row * x_stride + c, mask=m, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + row * x_stride + c, mask=m, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(x * x) / D + eps)
    y = x * r * tl.load(w_ptr + c, mask=m) * (g * tl.sigmoid(g))
    tl.store(y_ptr + row * x_stride + c, y.to(y_ptr.dtype.element_ty), mask=m)


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x, gate):
        y = torch.empty_like(x)
        M, D = x.shape
        _rms_gate[(M,)](x, gate, self.weight, y, x.stride(0), D, self.eps, triton.next_power_of_2(D))
        return y
