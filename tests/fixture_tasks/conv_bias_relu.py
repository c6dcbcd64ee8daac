"""A 3×3 convolution with padding, ReLU."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 1, "C": 4, "O": 16, "H": 6, "W": 8}, "ragged": {"B": 2, "C": 3, "O": 5, "H": 5, "W": 7}}
B = 16
C = 64
O = 128
H = 56
W = 56


class Model(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(B, C, H, W)]


def get_init_inputs():
    return [C, O]
