"""Transposed convolution, softplus, one learned scale."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {'small': {'B': 1, 'C': 4, 'O': 3, 'H': 4, 'W': 4}, 'ragged': {'B': 2, 'C': 3, 'O': 5, 'H': 5, 'W': 3}}
B = 16
C = 64
O = 32
H = 32
W = 32


class Model(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, out_channels, 4, stride=2, padding=1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return F.softplus(self.up(x)) * self.scale


def get_inputs():
    return [torch.randn(B, C, H, W)]


def get_init_inputs():
    return [C, O]
