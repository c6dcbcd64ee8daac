# task: bias_logsumexp
# Lane-wise running maximum and sum, combined at the end; softplus with the reference's threshold of 20.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def lse(x, b, y, N, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    m = tl.full((BLOCK,), -1e30, tl.float32)
    s = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, N, BLOCK):
        i = k + tl.arange(0, BLOCK)
        v = tl.load(x + row * N + i, mask=i < N, other=-1e30) + tl.load(b + i, mask=i < N, other=0.0)
        new = tl.maximum(m, v)
        s = s * tl.exp(m - new) + tl.where(i < N, tl.exp(v - new), 0.0)
        m = new
    top = tl.max(m)
    z = tl.log(tl.sum(s * tl.exp(m - top))) + top - SHIFT
    tl.store(y + row, tl.where(z > 20.0, z, tl.log(1.0 + tl.exp(tl.minimum(z, 20.0)))))


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        lse[(x.shape[0],)](x, self.bias, y, x.shape[1], SHIFT=2.0, BLOCK=32)
        return y.unsqueeze(1)
