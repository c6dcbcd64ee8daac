"""Product of two matrices."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 32, "N": 32, "K": 64}, "ragged": {"M": 37, "N": 29, "K": 45}}
M = 4096
N = 4096
K = 4096


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
