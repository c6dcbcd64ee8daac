"""Columns in reverse, and the lower triangle of a square."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 2, "N": 32}, "ragged": {"B": 3, "N": 29}}
B = 64
N = 512


class Model(nn.Module):
    def forward(self, x):
        return torch.tril(x, diagonal=-1), x.flip(-1)


def get_inputs():
    return [torch.randn(B, N, N)]


def get_init_inputs():
    return []
