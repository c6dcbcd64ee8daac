"""A linear layer without bias, squared ReLU."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 16, "K": 32, "N": 32}, "ragged": {"M": 19, "K": 21, "N": 35}}
M = 4096
K = 2048
N = 8192


class Model(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.fc = nn.Linear(features, outputs, bias=False)

    def forward(self, x):
        return torch.relu(self.fc(x)).square()


def get_inputs():
    return [torch.randn(M, K)]


def get_init_inputs():
    return [K, N]
