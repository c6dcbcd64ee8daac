"""Linear layer, exact (erf) GELU."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"M": 16, "K": 32, "N": 32}, "ragged": {"M": 13, "K": 37, "N": 29}}
M = 4096
K = 1024
N = 2048


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return F.gelu(self.linear(x))


def get_inputs():
    return [torch.randn(M, K)]


def get_init_inputs():
    return [K, N]
