"""Three outputs of different shapes: unbiased variance, absolute sum, overall mean square."""

import torch
import torch.nn as nn

INPUT_SETS = {'small': {'M': 8, 'N': 64}, 'ragged': {'M': 5, 'N': 37}}
M = 8192
N = 8192


class Model(nn.Module):
    def forward(self, x):
        return torch.var(x, dim=1), x.abs().sum(dim=1), (x * x).mean()


def get_inputs():
    return [torch.randn(M, N)]


def get_init_inputs():
    return []
