"""Convolution, batch norm by its running statistics, ReLU."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 2, "C": 4, "O": 8, "H": 8, "W": 8}, "ragged": {"B": 3, "C": 5, "O": 7, "H": 9, "W": 11}}
B = 32
C = 32
O = 64
H = 64
W = 64


class Model(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(out_channels)
        self.eval()

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


def get_inputs():
    return [torch.randn(B, C, H, W)]


def get_init_inputs():
    return [C, O]
