"""Strided 1-D convolution, gated linear unit, average pool that counts its padding."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {'small': {'B': 2, 'C': 4, 'O': 4, 'L': 32}, 'ragged': {'B': 3, 'C': 3, 'O': 5, 'L': 29}}
B = 32
C = 64
O = 64
L = 4096


class Model(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, 2 * out_channels, 5, stride=2, padding=2, dilation=1)

    def forward(self, x):
        return F.avg_pool1d(F.glu(self.conv(x), dim=1), 3, stride=2, padding=1)


def get_inputs():
    return [torch.randn(B, C, L)]


def get_init_inputs():
    return [C, O]
