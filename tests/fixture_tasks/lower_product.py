"""The lower triangle of a matrix times its transpose; zeros above."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"N": 32, "K": 32}, "ragged": {"N": 45, "K": 19}}
N = 4096
K = 256


class Model(nn.Module):
    def forward(self, a):
        return torch.tril(a @ a.t())


def get_inputs():
    return [torch.randn(N, K)]


def get_init_inputs():
    return []
