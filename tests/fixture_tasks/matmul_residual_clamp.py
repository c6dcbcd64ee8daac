"""Product with a bare weight, scaled, plus a residual input, clamped from both sides."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 16, "K": 32, "N": 32}, "ragged": {"M": 11, "K": 23, "N": 35}}
M = 4096
K = 1024
N = 2048


class Model(nn.Module):
    def __init__(self, in_features, out_features, scale, low, high):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(in_features, out_features) / in_features**0.5)
        self.scale = scale
        self.low = low
        self.high = high

    def forward(self, x, residual):
        y = torch.matmul(x, self.weight) * self.scale
        return torch.clamp(y + residual, self.low, self.high)


def get_inputs():
    return [torch.randn(M, K), torch.randn(M, N)]


def get_init_inputs():
    return [K, N, 0.7, -1.5, 2.0]
