"""Convolution, group norm, mean over space."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 2, "C": 4, "O": 8, "G": 2, "H": 8, "W": 8}, "ragged": {"B": 3, "C": 5, "O": 9, "G": 3, "H": 7, "W": 9}}
B = 32
C = 16
O = 64
G = 8
H = 64
W = 64


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, num_groups):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3)
        self.group_norm = nn.GroupNorm(num_groups, out_channels)

    def forward(self, x):
        return self.group_norm(self.conv(x)).mean(dim=(2, 3))


def get_inputs():
    return [torch.randn(B, C, H, W)]


def get_init_inputs():
    return [C, O, G]
