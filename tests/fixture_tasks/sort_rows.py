"""Rows sorted from the largest to the smallest."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 8, "N": 32}, "ragged": {"M": 5, "N": 27}}
M = 16384
N = 512


class Model(nn.Module):
    def forward(self, x):
        return torch.sort(x, dim=-1, descending=True).values


def get_inputs():
    return [torch.randn(M, N)]


def get_init_inputs():
    return []
