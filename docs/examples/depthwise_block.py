"""A residual block of a mobile vision network: depthwise convolution, GroupNorm, SiLU."""

import torch
from torch import nn

BATCH, CHANNELS, SIZE = 32, 192, 112


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = nn.GroupNorm(32, channels)

    def forward(self, x):
        return x + nn.functional.silu(self.norm(self.depthwise(x)))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS]
