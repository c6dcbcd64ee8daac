"""A square matrix that depends on rows' distances: exp(-|x_i - x_j|), symmetric."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"N": 32}, "ragged": {"N": 45}}
N = 8192


class Model(nn.Module):
    def forward(self, x):
        return torch.exp(-(x[:, None] - x[None, :]).abs())


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return []
