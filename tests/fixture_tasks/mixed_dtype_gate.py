"""Outputs of three dtypes (float, bool, int32); numbers, a bool and None among the inputs."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {'small': {'M': 8, 'N': 32}, 'ragged': {'M': 7, 'N': 27}}
M = 4096
N = 4096


class Model(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x, scale, negative=True, residual=None):
        y = F.leaky_relu(x, self.slope) * scale
        return (y, y > 0, y.to(torch.int32)) if negative else y


def get_inputs():
    return [torch.randn(M, N) * 3, 0.5, True, None]


def get_init_inputs():
    return [0.02]
