"""Transposed convolution, minus a bias of its own, tanh."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 2, "C": 4, "O": 4, "H": 6, "W": 6}, "ragged": {"B": 3, "C": 5, "O": 3, "H": 5, "W": 7}}
B = 16
C = 32
O = 32
H = 64
W = 64


class Model(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels, 3, stride=2, padding=1, output_padding=1)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        return torch.tanh(self.conv_transpose(x) - self.bias)


def get_inputs():
    return [torch.randn(B, C, H, W)]


def get_init_inputs():
    return [C, O]
