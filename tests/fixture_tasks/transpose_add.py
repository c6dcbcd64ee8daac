"""A transpose plus a bias."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 2, "M": 16, "N": 32}, "ragged": {"B": 3, "M": 13, "N": 27}}
B = 8
M = 2048
N = 1024


class Model(nn.Module):
    def forward(self, x, bias):
        return x.transpose(1, 2) + bias


def get_inputs():
    return [torch.randn(B, M, N), torch.randn(M)]


def get_init_inputs():
    return []
