"""Product, tanh."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 2, "N": 32, "K": 16}, "ragged": {"M": 3, "N": 19, "K": 5}}
M = 64
N = 256
K = 2048


class Model(nn.Module):
    def forward(self, a, b):
        return torch.tanh(a @ b)


def get_inputs():
    return [torch.randn(M, K) * K**-0.5, torch.randn(K, N)]


def get_init_inputs():
    return []
