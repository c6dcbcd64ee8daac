"""Gated MLP: SiLU of one product times another, projected, plus the input."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {'small': {'T': 8, 'D': 16, 'H': 32}, 'ragged': {'T': 7, 'D': 12, 'H': 20}}
T = 4096
D = 1024
H = 2816


class Model(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x)) + x


def get_inputs():
    return [torch.randn(T, D)]


def get_init_inputs():
    return [D, H]
