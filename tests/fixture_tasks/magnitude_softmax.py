"""Softmax over the magnitudes of complex numbers, each times a learned complex gain that begins as one."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 8, "N": 32}, "ragged": {"M": 5, "N": 27}}
M = 4096
N = 512


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features, dtype=torch.complex64))

    def forward(self, z):
        return torch.softmax((z * self.gain).abs(), dim=-1)


def get_inputs():
    return [torch.randn(M, N, dtype=torch.complex64)]


def get_init_inputs():
    return [N]
