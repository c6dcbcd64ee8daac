# task: rmsnorm_silu_gate
# Sums of squares in one kernel, gating in another over a flat index; SiLU as g / (1 + exp(-g)).
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_squares(x, out, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for s in range(0, D, BLOCK):
        c = s + tl.arange(0, BLOCK)
        v = tl.load(x + row * D + c, mask=c < D, other=0.0)
        acc += v * v
    tl.store(out + row, tl.sum(acc, axis=0))


@triton.jit
def gate_rows(x, g, w, ss, y, numel, D, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < numel
    row = i // D
    gate = tl.load(g + i, mask=m, other=0.0)
    rms = 1.0 / tl.sqrt(tl.load(ss + row, mask=m, other=1.0) / D + eps)
    v = tl.load(x + i, mask=m, other=0.0) * rms * tl.load(w + i % D, mask=m, other=0.0)
    tl.store(y + i, v * (gate / (1.0 + tl.exp(-gate))), mask=m)


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x, gate):
        x, gate = x.contiguous(), gate.contiguous()
        M, D = x.shape
        ss = torch.empty(M, device=x.device, dtype=torch.float32)
        y = torch.empty_like(x)
        sum_squares[(M,)](x, ss, D, BLOCK=64)
        gate_rows[(triton.cdiv(x.numel(), 512),)](x, gate, self.weight, ss, y, x.numel(), D, self.eps, BLOCK=512)
        return y
