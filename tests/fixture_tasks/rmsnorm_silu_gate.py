"""RMS norm with a learnt weight, times SiLU of a gate."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"M": 12, "D": 64}, "ragged": {"M": 9, "D": 71}}
M = 16384
D = 1024


class Model(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x, gate):
        rms = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return x * rms * self.weight * F.silu(gate)


def get_inputs():
    return [torch.randn(M, D), torch.randn(M, D)]


def get_init_inputs():
    return [D, 1e-5]
