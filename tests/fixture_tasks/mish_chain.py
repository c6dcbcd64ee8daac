"""Pointwise chain: scale, mish, residual, hardtanh."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"M": 8, "N": 128}, "ragged": {"M": 7, "N": 93}}
M = 4096
N = 8192


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return F.hardtanh(F.mish(x * self.scale) + x, -1.0, 3.0)


def get_inputs():
    return [torch.randn(M, N)]


def get_init_inputs():
    return [1.3]
