"""Channels in a fixed order that a buffer holds, scaled."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 8, "C": 32}, "ragged": {"M": 5, "C": 32}}
M = 65536
C = 256


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.register_buffer("order", torch.arange(channels).flip(0))
        self.scale = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x):
        return x[:, self.order] * self.scale


def get_inputs():
    return [torch.randn(M, C)]


def get_init_inputs():
    return [C]
