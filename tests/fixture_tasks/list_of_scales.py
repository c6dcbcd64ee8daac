"""A chain of learned scales and shifts with a tanh between, in lists."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 8, "D": 32}, "ragged": {"M": 5, "D": 27}}
M = 16384
D = 1024


class Model(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(dim) + 0.5) for _ in range(depth)])
        self.shifts = nn.ParameterList([nn.Parameter(torch.randn(dim) * 0.1) for _ in range(depth)])

    def forward(self, x):
        for scale, shift in zip(self.scales, self.shifts):
            x = torch.tanh(x * scale + shift)
        return x


def get_inputs():
    return [torch.randn(M, D)]


def get_init_inputs():
    return [D, 3]
