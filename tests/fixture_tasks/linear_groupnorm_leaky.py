"""Linear layer, group norm over its features, leaky ReLU."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"M": 8, "K": 32, "N": 32, "G": 4}, "ragged": {"M": 7, "K": 19, "N": 33, "G": 3}}
M = 4096
K = 512
N = 2048
G = 32


class Model(nn.Module):
    def __init__(self, in_features, out_features, num_groups, slope):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.GroupNorm(num_groups, out_features)
        self.slope = slope

    def forward(self, x):
        return F.leaky_relu(self.norm(self.linear(x)), self.slope)


def get_inputs():
    return [torch.randn(M, K)]


def get_init_inputs():
    return [K, N, G, 0.1]
