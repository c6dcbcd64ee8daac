"""Linear layer with many more inputs than outputs."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 2, "N": 32, "K": 16}, "ragged": {"M": 3, "N": 19, "K": 11}}
M = 128
N = 256
K = 4096


class Model(nn.Module):
    def __init__(self, K, N):
        super().__init__()
        self.proj = nn.Linear(K, N, bias=False)

    def forward(self, x):
        return self.proj(x)


def get_inputs():
    return [torch.randn(M, K)]


def get_init_inputs():
    return [K, N]
