# task: linear_groupnorm_leaky
# Parameters under names of its own, in the reference's order; bias added in the normalising kernel; three passes over a row.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def epilogue(z, lin_b, gamma, beta, y, N, PER, eps, slope, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    groups = N // PER
    row, g = pid // groups, pid % groups
    base = row * N + g * PER
    total = tl.zeros([BLOCK], tl.float32)
    for s in range(0, PER, BLOCK):
        j = s + tl.arange(0, BLOCK)
        m = j < PER
        total += tl.load(z + base + j, mask=m, other=0.0) + tl.load(lin_b + g * PER + j, mask=m, other=0.0)
    mean = tl.sum(total) / PER
    square = tl.zeros([BLOCK], tl.float32)
    for s in range(0, PER, BLOCK):
        j = s + tl.arange(0, BLOCK)
        m = j < PER
        d = tl.load(z + base + j, mask=m, other=0.0) + tl.load(lin_b + g * PER + j, mask=m, other=0.0) - mean
        square += tl.where(m, d * d, 0.0)
    rstd = tl.rsqrt(tl.sum(square) / PER + eps)
    for s in range(0, PER, BLOCK):
        j = s + tl.arange(0, BLOCK)
        m = j < PER
        c = g * PER + j
        d = tl.load(z + base + j, mask=m, other=0.0) + tl.load(lin_b + c, mask=m, other=0.0) - mean
        v = d * rstd * tl.load(gamma + c, mask=m, other=1.0) + tl.load(beta + c, mask=m, other=0.0)
        tl.store(y + base + j, tl.where(v > 0, v, v * slope), mask=m)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, num_groups, slope):
        super().__init__()
        self.w = nn.Parameter(torch.empty(out_features, in_features))
        self.b = nn.Parameter(torch.empty(out_features))
        self.gamma = nn.Parameter(torch.ones(out_features))
        self.beta = nn.Parameter(torch.zeros(out_features))
        self.groups, self.slope = num_groups, slope
        nn.init.kaiming_uniform_(self.w, a=5**0.5)
        nn.init.zeros_(self.b)

    def forward(self, x):
        z = torch.mm(x, self.w.t())
        y = torch.empty_like(z)
        M, N = z.shape
        epilogue[(M * self.groups,)](z, self.b, self.gamma, self.beta, y, N, N // self.groups, 1e-5, self.slope, BLOCK=16)
        return y
