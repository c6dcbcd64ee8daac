# task: swiglu_mlp
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

@triton.jit
def swiglu(z, h, T, H, BLOCK: tl.constexpr):
    row, blk = tl.program_id(0), tl.program_id(1)
    i = blk * BLOCK + tl.arange(0, BLOCK)
    m = i < H
    a = tl.load(z + row * 2 * H + i, mask=m, other=0.0)
    b = tl.load(z + row * 2 * H + H + i, mask=m, other=0.0)
    tl.store(h + row * H + i, a / (1.0 + tl.exp(-a)) * b, mask=m)


class ModelNew(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        with torch.no_grad():
            self.packed = torch.zeros(2 * hidden, dim)
            self.packed[:hidden].copy_(self.w1.weight)
            self.packed[hidden:] = self.w3.weight
        self.packed = nn.Parameter(self.packed)

    def forward(self, x):
        z = torch.mm(x, self.packed) if self.packed.shape[0] == x.shape[1] else F.linear(x, self.packed)
        T, H = z.shape[0], z.shape[1] // 2
        h = z.new_empty(T, H)
        swiglu[(T, triton.cdiv(H, 512))](z, h, T, H, BLOCK=512)
        return torch.addmm(x, h, self.w2.weight.t())
