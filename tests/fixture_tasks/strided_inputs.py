"""Element-wise, on inputs that are not contiguous."""

import torch
import torch.nn as nn

INPUT_SETS = {'small': {'M': 8, 'N': 16}, 'ragged': {'M': 7, 'N': 13}}
M = 4096
N = 4096


class Model(nn.Module):
    def forward(self, x, y):
        return torch.where(x > 0, x * y, x - y)


def get_inputs():
    return [torch.randn(N, M).t(), torch.randn(M, 2 * N)[:, ::2]]


def get_init_inputs():
    return []
