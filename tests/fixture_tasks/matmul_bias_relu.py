"""Product, bias, relu."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 2, "K": 32, "N": 16}, "ragged": {"M": 3, "K": 19, "N": 11}}
M = 2048
K = 256
N = 384


class Model(nn.Module):
    def __init__(self, K, N):
        super().__init__()
        self.w = nn.Parameter(torch.randn(K, N) * 0.05)

    def forward(self, x, bias):
        return torch.relu(x @ self.w + bias)


def get_inputs():
    return [torch.randn(M, K), torch.randn(N)]


def get_init_inputs():
    return [K, N]
