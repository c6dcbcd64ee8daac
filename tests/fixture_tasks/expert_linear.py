"""One linear layer for each expert, over rows sorted by expert; the numbers of rows are fixed."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"R": 4, "K": 16, "N": 16}, "ragged": {"R": 3, "K": 13, "N": 11}}
R = 512
K = 2048
N = 2048
SHARES = [1, 3, 2]


class Model(nn.Module):
    def __init__(self, shares, features, outputs):
        super().__init__()
        self.shares = shares
        self.weight = nn.Parameter(torch.randn(len(shares), outputs, features) * 0.02)

    def forward(self, x):
        unit = x.shape[0] // sum(self.shares)
        parts = x.split([unit * s for s in self.shares])
        return torch.cat([part @ w.t() for part, w in zip(parts, self.weight)])


def get_inputs():
    return [torch.randn(6 * R, K)]


def get_init_inputs():
    return [SHARES, K, N]
