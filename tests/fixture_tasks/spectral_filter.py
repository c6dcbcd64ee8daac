"""A filter learned over the frequencies of a signal, with a residual."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 4, "N": 32}, "ragged": {"B": 3, "N": 45}}
B = 16
N = 256


class Model(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(length // 2 + 1, 2) * 0.5)

    def forward(self, x):
        spectrum = torch.fft.rfft(x, norm="ortho") * torch.view_as_complex(self.weight)
        return torch.fft.irfft(spectrum, n=x.shape[-1], norm="ortho") + x


def get_inputs():
    return [torch.randn(B, N)]


def get_init_inputs():
    return [N]
