"""GeGLU over one tensor that holds both halves: gelu (tanh form) of the second times the first."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"T": 8, "H": 32}, "ragged": {"T": 5, "H": 27}}
T = 8192
H = 8192


class Model(nn.Module):
    def forward(self, x):
        a, b = x.chunk(2, dim=-1)
        return a * F.gelu(b, approximate="tanh")


def get_inputs():
    return [torch.randn(T, 2 * H)]


def get_init_inputs():
    return []
