"""Running sum over rows of what a boolean mask keeps."""

import torch
import torch.nn as nn

INPUT_SETS = {'small': {'M': 8, 'N': 64}, 'ragged': {'M': 5, 'N': 59}}
M = 4096
N = 4096


class Model(nn.Module):
    def forward(self, x, mask):
        return torch.cumsum(x * mask, dim=-1)


def get_inputs():
    return [torch.randn(M, N), torch.rand(M, N) > 0.3]


def get_init_inputs():
    return []
