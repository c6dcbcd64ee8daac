"""Softmax over the middle axis."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"N": 2, "C": 32, "S": 8}, "ragged": {"N": 3, "C": 19, "S": 11}}
N, C, S = 32, 256, 196


class Model(nn.Module):
    """Softmax over the middle axis."""

    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(N, C, S)]


def get_init_inputs():
    return []
