"""Depthwise convolution, pointwise convolution, ReLU6."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {'small': {'B': 2, 'C': 4, 'O': 8, 'H': 8, 'W': 8}, 'ragged': {'B': 1, 'C': 5, 'O': 7, 'H': 9, 'W': 11}}
B = 16
C = 64
O = 128
H = 56
W = 56


class Model(nn.Module):
    def __init__(self, channels, out_channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.pointwise = nn.Conv2d(channels, out_channels, 1)

    def forward(self, x):
        return F.relu6(self.pointwise(self.depthwise(x)))


def get_inputs():
    return [torch.randn(B, C, H, W)]


def get_init_inputs():
    return [C, O]
