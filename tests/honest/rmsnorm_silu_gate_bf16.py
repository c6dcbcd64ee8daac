# task: rmsnorm_silu_gate
# precision: bf16
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_gate(x_ptr, g_ptr, w_ptr, y_ptr, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0) * D
    c = tl.arange(0, BLOCK)
    m = c < D
    x = tl.load(x_ptr + row + c, mask=m, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + row + c, mask=m, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x) / D + eps) * tl.load(w_ptr + c, mask=m, other=0.0).to(tl.float32) * g * tl.sigmoid(g)
    tl.store(y_ptr + row + c, y.to(tl.bfloat16), mask=m)


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x, gate):
        y = torch.empty_like(x)
        rms_gate[(x.shape[0],)](x, gate, self.weight, y, x.shape[1], self.eps, BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
