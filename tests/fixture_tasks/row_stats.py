"""Two outputs: rows standardised by the unbiased deviation, and that deviation."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 12, "N": 64}, "ragged": {"M": 9, "N": 61}}
M = 8192
N = 4096


class Model(nn.Module):
    def forward(self, x):
        std = x.std(dim=1, keepdim=True) + 1e-3
        return (x - x.mean(dim=1, keepdim=True)) / std, std


def get_inputs():
    return [torch.randn(M, N)]


def get_init_inputs():
    return []
