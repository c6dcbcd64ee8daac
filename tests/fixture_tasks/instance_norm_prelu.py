"""Instance norm with affine parameters, PReLU with a slope a channel."""

import torch
import torch.nn as nn

INPUT_SETS = {'small': {'B': 2, 'C': 4, 'H': 8, 'W': 8}, 'ragged': {'B': 3, 'C': 3, 'H': 7, 'W': 9}}
B = 16
C = 64
H = 128
W = 128


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.InstanceNorm2d(channels, affine=True)
        self.act = nn.PReLU(channels)

    def forward(self, x):
        return self.act(self.norm(x))


def get_inputs():
    return [torch.randn(B, C, H, W)]


def get_init_inputs():
    return [C]
