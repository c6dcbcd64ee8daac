"""Residual sum, then layer norm over the last axis."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 2, "S": 8, "D": 64}, "ragged": {"B": 3, "S": 5, "D": 67}}
B = 16
S = 1024
D = 1024


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, residual):
        return self.norm(x + residual)


def get_inputs():
    return [torch.randn(B, S, D), torch.randn(B, S, D)]


def get_init_inputs():
    return [D]
