"""The complex spectrum of a signal, scaled frequency by frequency; complex numbers are returned."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 4, "N": 32}, "ragged": {"B": 3, "N": 45}}
B = 16
N = 256


class Model(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(length // 2 + 1) + 0.5)

    def forward(self, x):
        return torch.fft.rfft(x) * self.gain


def get_inputs():
    return [torch.randn(B, N)]


def get_init_inputs():
    return [N]
